"""Compare our table of families in which a channel's number has a meaning with the models' behaviour."""

import re
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

from mdir_hf.model.roles import meaning_of_numbers, read_sizes, resolve_anatomy
from mdir_hf.model.roles.numbered_channels import NESTED, NUMBER_ROWS, RAMPS, SINUSOIDS
from tests.model.roles.tiny_causal import build_module

N_TOKENS = 12

NOT_IN_THE_STREAM = {
    "turn queries and keys": {"codegen", "gptj", "roformer"},
    "enter the attention scores": {"funnel", "xlnet"},
    "are input to an audio encoder with a separate stream": {
        *("fun_asr_nano", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "qwen2_5_omni", "qwen2_5_omni_thinker"),
        *("qwen3_asr", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "whisper"),
    },
    "are input to an image encoder with a separate stream": {
        *("florence2", "granite_docling", "kimi_k25"),
    },
    "are features of bytes and pixels, next to others": {"perceiver"},
    "encode a time, of a diffusion or a delay": {
        *("gradium_phonon_tts", "pi0", "pocket_tts", "vibevoice", "voxtral_realtime"),
    },
    "encode a speaker": {"nemo_speechlm"},
}
"""Uses of sinusoids in families that are not in the table."""

WHOLES = {"musicgen", "musicgen_melody"}
"""Families whose decoders are in the table under their own names."""

MAPPINGS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT")
MAPPINGS += ("TEXT_TO_SPECTROGRAM", "TEXT_TO_WAVEFORM", "MULTIMODAL_LM")
"""Classes of transformers that read or write tokens."""

# No tiny model of these runs on tokens alone; tests/model/roles/test_rotary.py leaves most of them out too.
NOT_RUN = {"gemma3n", "gemma4_assistant", "gemma4_unified_assistant", "musicgen", "musicgen_melody", "reformer"}

FEW = ("xglm", "marian", "ctrl", "gpt2", "opt", "llama")
WITH_ENCODERS = ("m2m_100", "nllb-moe", "fsmt", "pegasus", "pegasus_x", "seamless_m4t", "bart")
ASKED_FOR = (
    ("trocr", "use_learned_position_embeddings", False),
    ("xlm", "sinusoidal_embeddings", True),
    ("distilbert", "sinusoidal_pos_embds", True),
)


class Sums(TorchFunctionMode):
    """Record the terms of sums that have a row for each token."""

    def __init__(self):
        super().__init__()
        self.terms = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in {"add", "__add__", "__radd__", "__iadd__", "add_"}:
            terms = (term for term in args[:2] if isinstance(term, torch.Tensor) and term.dim() in (2, 3))
            self.terms += [term.detach() for term in terms if term.shape[-2] == N_TOKENS]
        return func(*args, **(kwargs or {}))


def is_sinusoidal(term):
    """Whether every channel is a wave s over the tokens: s[p+1] + s[p-1] = 2 cos(w) s[p].

    Differences between tokens remove terms that are equal at every position (the single token). A slow wave changes by
    1e-4 from token to token, which float32 represents to 1e-3; random numbers miss the relation by 1. Decaying terms,
    such as the state of a recurrent layer, have a factor above 2 in every channel; the fastest wave has 2 cos(1).
    """
    step = term.reshape(-1, *term.shape[-2:])[0].double().diff(dim=0)
    moves = step.norm(dim=0) > 1e-5
    if moves.sum() < step.shape[1] // 2:
        return False
    step = step[:, moves]
    middle, beside = step[1:-1], step[2:] + step[:-2]
    factor = (beside * middle).sum(0) / middle.square().sum(0)
    miss = (beside - factor * middle).norm(dim=0) / step.norm(dim=0)
    return bool(miss.median() < 0.02 and factor.min() < 1.5)


def adds_sinusoids(model_type, mapping=transformers.MODEL_FOR_CAUSAL_LM_MAPPING, **more):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        module = build_module(model_type, mapping=mapping, **more)
        with Sums() as sums:
            tokens = torch.full((1, N_TOKENS), 5)
            decoder = {"decoder_input_ids": tokens} if module.config.is_encoder_decoder else {}
            module(tokens, use_cache=False, **decoder)
    width = read_sizes(module.config.to_dict()).hidden_size
    return any(is_sinusoidal(term) for term in sums.terms if term.shape[-1] == width), module.config.to_dict()


def check(model_type, **options):
    adds, config = adds_sinusoids(model_type, **options)
    assert adds is (read_sizes(config).channel_numbers == SINUSOIDS)
    return adds


@pytest.mark.parametrize("model_type", FEW)
def test_sinusoids_enter_the_stream_according_to_the_table(model_type):
    check(model_type)


@pytest.mark.parametrize("model_type", WITH_ENCODERS)
def test_sinusoids_enter_the_stream_of_a_decoder_beside_an_encoder(model_type):
    check(model_type, mapping=transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING)


@pytest.mark.parametrize(("model_type", "key", "answer"), ASKED_FOR)
def test_sinusoids_enter_the_stream_according_to_the_config(model_type, key, answer):
    of_tokens = {"distilbert": transformers.MODEL_FOR_MASKED_LM_MAPPING}
    mapping = of_tokens.get(model_type, transformers.MODEL_FOR_CAUSAL_LM_MAPPING)
    assert check(model_type, mapping=mapping, **{key: answer})
    assert not check(model_type, mapping=mapping, **{key: not answer})


@pytest.mark.slow
# Every third: neighbouring classes of one family share their code.
@pytest.mark.parametrize("model_type", sorted(set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - NOT_RUN)[::3])
def test_sinusoids_enter_the_stream_of_no_other_causal_model(model_type):
    check(model_type)


def test_every_family_with_sinusoids_is_in_the_table():
    reads_tokens = {
        name for mapping in MAPPINGS for name in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
    }
    folder = Path(transformers.__file__).parent / "models"
    has_sinusoids = {
        name
        for name in reads_tokens & set(CONFIG_MAPPING_NAMES)
        if any(
            re.search(r"(?i)sinusoid|timing_signal|def positional_encoding", file.read_text(encoding="utf-8"))
            for file in (folder / model_type_to_module_name(name)).glob("modeling_*.py")
        )
    }
    in_table = {name for row in NUMBER_ROWS if row.meaning == SINUSOIDS for name in row.model_types}
    excused = set().union(*NOT_IN_THE_STREAM.values())
    assert has_sinusoids - in_table - excused - WHOLES == set()
    assert not in_table & excused
    assert in_table - set(CONFIG_MAPPING_NAMES) == {"speech_to_text_2"}  # not in transformers 5
    assert excused <= has_sinusoids


def test_an_rwkv_without_a_config_is_known_by_its_tensors():
    names = ["emb.weight", "blocks.0.att.x_r", "blocks.0.att.receptance.weight"]
    assert resolve_anatomy(None, names, lambda name: (64, 32)).channel_numbers == RAMPS


def test_nested_widths_give_numbers_a_meaning_if_a_config_states_them():
    config = {"model_type": "bert", "hidden_size": 64}
    assert read_sizes(config).channel_numbers is None
    assert read_sizes(config | {"matryoshka_dimensions": []}).channel_numbers is None
    assert read_sizes(config | {"is_matryoshka": False}).channel_numbers is None
    assert read_sizes(config | {"matryoshka_dimensions": [16, 32]}).channel_numbers == NESTED
    assert read_sizes(config | {"is_matryoshka": True}).channel_numbers == NESTED


def test_fields_of_a_nested_config_count():
    decoder = {"model_type": "trocr", "hidden_size": 64, "use_learned_position_embeddings": False}
    assert read_sizes({"model_type": "vision-encoder-decoder", "decoder": decoder}).channel_numbers == SINUSOIDS
    assert meaning_of_numbers("trocr") is None


def test_a_fourier_transform_over_channels_names_them_by_number():
    from transformers import FNetConfig, FNetModel

    config = FNetConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, intermediate_size=8)
    mixing = FNetModel(config).encoder.layer[0].fourier
    stream = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0))
    renumbered = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    mixed = mixing(stream)[0]
    assert not torch.allclose(mixing(stream[..., renumbered])[0], mixed[..., renumbered], atol=0.1)
    assert "Fourier transform" in meaning_of_numbers("fnet")
