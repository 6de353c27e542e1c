"""Rotary positions: which rows of q and k are rotated, how they pair up, and in which layers.

Source: the modelling files of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mdir_hf.model.roles.rows import RopeLayout

_Config = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Rotation:
    """How positions rotate the first ``dim`` rows of a head; ``dim`` is None for all rows, or if unknown."""

    layout: RopeLayout = "unknown"
    dim: int | None = None


ROTATED_IN_WINDOWS = frozenset(
    {"afmoe", "beam", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1"}
)
"""Families in which positions affect only layers with windowed attention."""

FAMILIES: Mapping[RopeLayout, frozenset[str]] = {
    "half": frozenset(
        {
            *("afmoe", "apertus", "arcee", "aria_text", "bamba", "beam", "bitnet", "cohere_compass_text", "cwm"),
            *("dbrx", "doge", "dots1", "emu3_text_model", "exaone4", "exaone_moe", "falcon", "falcon_h1"),
            *("flex_olmo", "flint", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text"),
            *("gemma4_unified_text", "glm4_moe", "gpt_neox", "gpt_oss", "granite", "granite_swa", "granitemoe"),
            *("granitemoe_swa", "granitemoeshared", "hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3"),
            *("hyperclovax", "internlm3", "iquestcoder", "jais2", "kolibri1", "laguna", "lfm2", "lfm2_moe"),
            *("lfm3", "llama", "mellum", "mimo_v2_flash", "minimax", "minimax_m2", "minimax_m3_vl_text"),
            *("ministral", "ministral3", "mistral", "mixtral", "mllama_text_model", "modernbert-decoder", "moshi"),
            *("nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "persimmon", "phi", "phi3"),
            *("phi4_multimodal", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"),
            *("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "recurrent_gemma", "seed_oss"),
            *("RefinedWeb", "RefinedWebModel", "arctic", "grok-1", "mixformer-sequential", "new", "phi-msft"),
            *("smollm3", "solar_open", "stablelm", "starcoder2", "vaultgemma"),
        }
    ),
    "interleaved": frozenset(
        {
            *("blt_global_transformer", "codegen", "cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe"),
            *("glm", "glm4", "gptj", "helium", "llama4_text", "roformer"),
        }
    ),
    # Positions are learnt and added, or change the scores (ALiBi, T5), or there are none.
    "none": frozenset(
        {
            *("gpt2", "openai-gpt", "opt", "bloom", "mpt", "gpt_bigcode", "gpt_neo", "biogpt", "cpmant", "ctrl"),
            *("flaubert", "git", "granitemoehybrid", "inkling2_text", "inkling_text", "jamba", "musicgen_decoder"),
            *("musicgen_melody_decoder", "trocr", "whisper", "xglm", "xlm", "xlstm"),
            *("bert", "bert-generation", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert"),
            *("data2vec-text", "electra", "ernie", "megatron-bert", "rembert", "roberta-prelayernorm"),
            *("roc_bert", "deberta", "deberta-v2", "distilbert", "albert", "mpnet", "big_bird", "xmod"),
            *("layoutlm", "mra", "yoso", "nystromformer", "ibert", "longformer"),
            *("bart", "mbart", "mvp", "plbart", "marian", "pegasus", "pegasus_x", "bigbird_pegasus"),
            *("blenderbot", "blenderbot-small", "fsmt", "led", "m2m_100", "nllb-moe", "prophetnet"),
            *("zamba", "zamba2"),
        }
    ),
}
"""Families, grouped by how rows pair up; other families are ``unknown``."""


def family_layout(architecture: str, answers: Mapping[str, bool | str]) -> RopeLayout:
    """Return how a family pairs up the rows of a head, given its config values."""
    if architecture in ("falcon", "RefinedWeb", "RefinedWebModel") and answers.get("alibi") is True:
        return "none"
    if architecture == "granitemoehybrid" and answers.get("position_embedding_type") == "rope":
        return "half"
    if architecture == "zamba2" and answers.get("use_mem_rope") is True:
        return "half"
    return next((layout for layout, families in FAMILIES.items() if architecture in families), "unknown")


SHARE_KEYS = ("partial_rotary_factor", "rotary_pct")
"""Config keys for the rotated fraction of a head, also in ``rope_parameters`` and its entries for layer types."""

DIM_KEYS = ("rotary_dim",)
"""Config keys for the number of rotated rows of a head."""

LISTS_OF_ROTATED_LAYERS = ("no_rope_layers",)
"""Config keys whose value is a list in which, despite the key's name, 0 marks a layer without rotation."""

WHOLE_HEAD_TYPES = ("proportional",)
"""Values of ``rope_type`` for which all rows of a head pair up, but rows beyond the rotated fraction have an angle of
zero."""


def read_rotations(
    config: _Config, architecture: str, answers: Mapping[str, bool | str], head_dim: int | None, *, most_layers: int
) -> tuple[Rotation, dict[int, Rotation]]:
    """Return the model's rotation, and the rotations of layers that deviate, keyed by layer number."""
    layout = family_layout(architecture, answers)
    whole = Rotation(layout, None if layout == "none" else _dim(config, head_dim))
    layers: dict[int, Rotation] = {}
    types = config.get("layer_types")
    names = [name for name in types[:most_layers] if isinstance(name, str)] if isinstance(types, list) else []
    parameters = config.get("rope_parameters")
    has_windows = len(set(names)) > 1 and architecture in ROTATED_IN_WINDOWS
    for index, name in enumerate(names):
        if has_windows and name == "full_attention":
            layers[index] = Rotation("none")
            continue
        inside = parameters.get(name) if isinstance(parameters, Mapping) else None
        layers[index] = Rotation(layout, _dim(inside, head_dim) if isinstance(inside, Mapping) else whole.dim)
    for key in LISTS_OF_ROTATED_LAYERS:
        turned = config.get(key)
        for index, is_turned in enumerate(turned[:most_layers] if isinstance(turned, list) else []):
            if is_turned == 0:
                layers[index] = Rotation("none")
    return whole, {index: rotation for index, rotation in layers.items() if rotation != whole}


def _dim(config: _Config, head_dim: int | None) -> int | None:
    nested = config.get("rope_parameters")
    places = (config, nested if isinstance(nested, Mapping) else {})
    for key in DIM_KEYS:
        dim = config.get(key)
        if type(dim) is int and dim > 0 and (head_dim is None or dim < head_dim):
            return dim
    for place in places:
        for key in SHARE_KEYS:
            share = place.get(key)
            if isinstance(share, int | float) and 0.0 < share < 1.0 and head_dim is not None:
                dim = int(head_dim * share)
                return None if place.get("rope_type") in WHOLE_HEAD_TYPES else dim + dim % 2
    return None
