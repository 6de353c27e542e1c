"""Assign each tensor to one part by its role or, if it has none, by its name and shape."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mdir_hf.budgets import collector_paused
from mdir_hf.model.inventory.records import BEYOND, EXTRA_EXPERTS, LANGUAGE, ModelInventory, ModelPart, PartKind
from mdir_hf.model.roles import Anatomy
from mdir_hf.model.roles.layer_names import split_at_layer
from mdir_hf.model.roles.tables import LAYER_ALONE
from mdir_hf.model.roles.wrappers import without_wrappers
from mdir_hf.model.sources import StoredTensor

STACK_WORDS: tuple[tuple[str, str], ...] = (
    ("multi-token prediction", r"mtp|mtp_layers|nextn|predict_layers"),
    ("draft model", r"draft|draft_model|eagle\w*|medusa\w*|midlayer"),
    ("talker", r"talker"),
    ("speech decoder", r"token2wav|code2wav|codec_model|codec|vocoder|depth_decoder|dit"),
    ("video tower", r"video\w*"),
    ("audio tower", r"audio\w*|speech\w*|whisper\w*|wav\w*|apm|sound\w*|conformer"),
    ("vision tower", r"vision\w*|visual\w*|image\w*|vpm|vit|clip\w*|siglip\w*|v|mm_vision\w*|sam_model"),
    ("cross-attention layers", r"cross_attn\w*"),
)
"""Names of stacks, each with a pattern for one component of the stack's prefix."""

CONNECTOR_WORDS = (
    r"\w*projector\w*|\w*connector\w*|\w*resampler\w*|\w*merger\w*|\w*aligner\w*|\w*abstractor\w*|perceiver\w*|q_?former"
    r"|mlp1|embed_vision|embed_audio|multi_modal\w*|mm_\w*proj\w*|\w+_to_\w+_proj\w*|modality_\w+|\w*_adapter"
    r"|proj_in_\w+|mm"
)
"""Name components that identify a connector. They take precedence over all other patterns."""

TABLE_WORDS: tuple[tuple[str, str], ...] = (
    ("positions", r"wpe|position_embeddings?|embed_positions|positional_embedding|pos_embed\w*|position_embd"),
    (
        "per-layer embeddings",
        r"embed_tokens_per_layer|per_layer_token_embd|per_layer_model_projection|per_layer_model_proj|"
        r"per_layer_projection",
    ),
    ("token types", r"token_type_embeddings|token_types|segment_embeddings"),
    ("head for classes", r"score|classifier|classification_head|v_head|value_head|reward_head"),
)
"""Kinds of tables outside the layers, each with a pattern for one component of the table's name."""

AUXILIARY_WORDS: tuple[tuple[str, str], ...] = (
    (
        "cross-attention",
        r"encoder_attn|crossattention|cross_attn|cross_attention|EncDecAttention|encoder_decoder_attention",
    ),
    (
        "second attention",
        r"(query|key|value)_global|(e2e|e2w|w2e)_query|self_attn\.1|.*v_proj_(current|delayed)",
    ),
    ("second MLP", r"mlps\.\d+"),
    (
        "convolutions",
        r"\w*conv_?1d|\w*sconv|conv\.conv|conv_qk_\w+|self\.conv|conv_kernel_layer|conv_out_layer|key_conv_attn_layer",
    ),
    (
        "parameters of recurrences",
        r"A_log|D|dt_proj|dt_proj_weight|dt_proj_bias|x_proj|x_proj_weight|in_proj_(a|b|ba)|linear_attn\.(a|b)_proj"
        r"|rg_lru|attention\.[bfg]_proj|self_attn\.(b|f_a|f_b|g_a|g_b)_proj|[fi]gate_preact|(query|key|diagonal)_decay|receptance",
    ),
    ("gates of attention", r"(self_attn|output_projection)\.g(ate)?_proj|gate_attn|linear_gate|attn_sink_proj"),
    ("indexers", r"indexer|attn\.compressor"),
    ("experts of attention", r"self_attention\.experts"),
    ("factors of the output of attention", r"attn\.wo_[ab]"),
    (
        "position biases",
        r"relative_attention_bias|relative_pos_embeddings|rel_attn|rel_logits_proj|wr_du|r_kernel|r_[rsw]_bias|seg_embed|self_attn\.r_proj",
    ),
    ("adapters", r"adapter|adapter_modules|adapters"),
    ("mixing of streams", r"\w*hyper_connection\w*|altup|laurel|hc_\w+"),
    ("routers", r"router|gate\.down_proj|router_mlp|tid2eid"),
    ("per-layer inputs", r"per_layer_(input_gate|projection)"),
    ("conditioning of norms", r"ada_rms_norm"),
    ("integer copies", r"weight_integer"),
)
"""Purposes of layer matrices that no test reads, each with the name components that indicate it."""

IS_CONNECTOR = re.compile(CONNECTOR_WORDS)
_STACKS = tuple((label, re.compile(words)) for label, words in STACK_WORDS)
_AUXILIARY = tuple((label, re.compile(rf"(?:.*\.)?(?:{words})(?:\..*)?")) for label, words in AUXILIARY_WORDS)
_TABLES = tuple((label, re.compile(words)) for label, words in TABLE_WORDS)
_VECTORS = (
    *("bias", "norm", "layernorm", "inv_freq", "scale", "gamma", "beta", "running_mean", "running_var"),
    *("num_batches_tracked", "A_log", "D", "dt_bias", "position_ids", "sinks", "layer_scalar"),
)


def connector_in(components: list[str]) -> int | None:
    """Return the index of the name component that identifies a connector, or None."""
    return next((at for at, word in enumerate(components) if IS_CONNECTOR.fullmatch(word.lower())), None)


def stack_label(components: list[str]) -> tuple[str, int] | None:
    """Return a stack's label and the index of the name component that identifies it, or None."""
    for at, word in enumerate(components):
        for label, pattern in _STACKS:
            if pattern.fullmatch(word.lower()):
                return label, at
    return None


def auxiliary_label(suffix: str) -> str | None:
    """Infer a matrix's purpose from its name within the layer; return None if unknown."""
    return next((label for label, pattern in _AUXILIARY if pattern.fullmatch(suffix)), None)


def table_label(components: list[str]) -> str | None:
    """Return the kind of table that a tensor's name indicates, or None."""
    for word in components:
        for label, pattern in _TABLES:
            if pattern.fullmatch(word):
                return label
    return None


def is_named_like_a_vector(name: str) -> bool:
    """Return whether a tensor with this name is usually a vector."""
    last = name.removesuffix(".weight").rpartition(".")[2]
    is_norm = last.startswith("ln_") or "_ln_" in last
    return is_norm or last in _VECTORS or last.endswith(tuple(f"_{word}" for word in _VECTORS))


MOST_UNNAMED = 24
"""If there are more stacks with unknown names than this, they are combined into one part."""

UNREADABLE = "cannot be read"

LAST_LAYERS = "multi-token prediction"
"""Name of the part for layers beyond the depth, as many as the config declares for multi-token prediction."""

_IN_LAYERS = (PartKind.STACK, PartKind.EXPERTS, PartKind.AUXILIARY, PartKind.CONNECTOR)

_MATRIX_LEAVES = frozenset({"weight", "bias"})


@collector_paused()
def take_inventory(
    contents: Iterable[StoredTensor],
    anatomy: Anatomy,
    *,
    n_bytes_of_files: int,
    n_predicted: int = 0,
    notes: Iterable[str] = (),
) -> ModelInventory:
    """Assign each tensor to one part, in O(n log n) time.

    ``n_predicted`` is the number of layers for multi-token prediction that the config declares.
    """
    tensors = tuple(contents)
    weights = _Weights.of(anatomy, {tensor.weight for tensor in tensors}, n_predicted)
    filling: dict[ModelPart, list[tuple[StoredTensor, str | None]]] = defaultdict(list)
    for tensor in tensors:
        key, layer = weights.place(tensor)
        filling[key].append((tensor, layer))
    parts = tuple(_part(key, members, anatomy) for key, members in filling.items())
    order = {kind: at for at, kind in enumerate(PartKind)}
    ranked = sorted(
        parts,
        key=lambda part: (order[part.kind], part.name != LANGUAGE, -(part.n_bytes or 0), -part.n_tensors, part.name),
    )
    return ModelInventory(tuple(ranked), n_bytes_of_files, tuple(notes))


def may_have_other_stacks(names: Iterable[str], anatomy: Anatomy) -> bool:
    """Return whether any tensor without a role is outside the language model's layers."""
    edges = (anatomy.embedding, anatomy.unembedding, anatomy.final_norm)
    placed_names = {part.tensor for part in edges if part is not None}
    placed_names.update(name for layer in anatomy.layers for _, part in layer.all_parts() for name in part.tensors)
    layers = {layer.name for layer in anatomy.layers}

    def is_in_layer(name: str) -> bool:
        split = split_at_layer(name)
        if split is None or split[0] not in anatomy.prefixes or "expert" in split[2]:
            return False
        return _layer_name(anatomy, *split[:2]) in layers

    return not all(name in placed_names or is_in_layer(name) for name in names)


def _layer_name(anatomy: Anatomy, prefix: str, number: int) -> str:
    return str(number) if len(anatomy.prefixes) < 2 else f"{prefix.rpartition('.')[2]}.{number}"


@dataclass(frozen=True)
class _Weights:
    anatomy: Anatomy
    plain: Mapping[str, str]
    """Names without wrappers, keyed by stored name."""
    roles: dict[str, tuple[PartKind, str]]
    """Part kind and layer of each tensor that has a role."""
    labels: dict[str, str]
    """Name of the stack under each prefix."""
    roots: dict[str, str]
    """Name of the stack that each parent prefix belongs to."""
    lists: frozenset[str]
    """Prefixes of numbered lists of single matrices, which are not layers."""
    language_layers: frozenset[str]
    """Names of the language model's layers."""
    n_predicted: int
    """Number of layers for multi-token prediction that the config declares."""

    @classmethod
    def of(cls, anatomy: Anatomy, names: set[str], n_predicted: int) -> _Weights:
        plain = {stored: name for name, stored in without_wrappers(names).items()}
        roles: dict[str, tuple[PartKind, str]] = {}
        for layer in anatomy.layers:
            for role, part in layer.parts.items():
                kind = PartKind.VECTORS if role.is_norm else PartKind.STACK
                roles |= dict.fromkeys(part.tensors, (kind, layer.name))
            for kind, groups in ((PartKind.EXPERTS, layer.experts), (PartKind.STACK, layer.shared_experts)):
                for parts in groups:
                    for part in parts.values():
                        roles |= dict.fromkeys(part.tensors, (kind, layer.name))
        suffixes: dict[str, set[str]] = defaultdict(set)
        for name in plain.values():
            split = split_at_layer(name)
            if split is not None:
                suffixes[split[0]].add(split[2])
        # If a transformers class provided the roles, the prefixes in the files differ from the anatomy's.
        splits = (split_at_layer(plain.get(name, name)) for name in roles)
        own_prefixes = set(anatomy.prefixes) | {split[0] for split in splits if split is not None}
        lists = frozenset(
            prefix for prefix, of_it in suffixes.items() if of_it <= _MATRIX_LEAVES and prefix not in own_prefixes
        )
        labels, roots = _labels(own_prefixes, {prefix for prefix in suffixes if prefix not in lists})
        layers = frozenset(layer.name for layer in anatomy.layers)
        return cls(anatomy, plain, roles, labels, roots, lists, layers, n_predicted)

    def place(self, tensor: StoredTensor) -> tuple[ModelPart, str | None]:
        key, layer = self._place_weight(tensor)
        if tensor.belongs_to_other:
            owner = key.owner if key.kind in (PartKind.VECTORS, PartKind.STORAGE) else key.name
            if key.kind is PartKind.UNPLACED:
                owner = None
            name = "storage" if owner is None else f"storage of the {owner}"
            return ModelPart(name, PartKind.STORAGE, owner), layer
        if tensor.reason is not None:
            return ModelPart("", PartKind.UNPLACED, key.owner or key.name or None, UNREADABLE), layer
        if tensor.weight not in self.plain:
            return ModelPart("", PartKind.UNPLACED, key.owner, "a trained copy beside it counts"), layer
        return key, layer

    def _place_weight(self, tensor: StoredTensor) -> tuple[ModelPart, str | None]:
        anatomy, weight = self.anatomy, tensor.weight
        for edge, part in (("embedding", anatomy.embedding), ("unembedding", anatomy.unembedding)):
            if part is not None and part.tensor == weight:
                return ModelPart(edge, PartKind.TABLE), None
        if anatomy.final_norm is not None and anatomy.final_norm.tensor == weight:
            return _vectors(LANGUAGE), None
        if weight in self.roles:
            kind, layer = self.roles[weight]
            if kind is PartKind.EXPERTS:
                return ModelPart(f"experts of the {LANGUAGE}", kind, LANGUAGE), layer
            # Packed codes of 4 bits have the shape of a vector, (n, 1).
            is_vector = kind is PartKind.VECTORS or tensor.name.endswith("bias") or len(tensor.shape or (0, 0)) < 2
            return (_vectors(LANGUAGE) if is_vector else ModelPart(LANGUAGE, kind)), layer
        name = self.plain.get(weight, weight)
        if ".lora_A." in name or ".lora_B." in name or ".lora_a" in name or ".lora_b" in name:
            return ModelPart("storage: factors of adapters", PartKind.STORAGE), None
        split = split_at_layer(name)
        if name.startswith(LAYER_ALONE):
            split = (LAYER_ALONE[:-1], 0, name.removeprefix(LAYER_ALONE))
        if split is not None and split[0] not in self.lists:
            return self._in_layer(tensor, name, *split)
        return self._outside(tensor, name), None

    def _in_layer(
        self, tensor: StoredTensor, name: str, prefix: str, number: int, suffix: str
    ) -> tuple[ModelPart, str | None]:
        label = self.labels[prefix]
        layer = _layer_name(self.anatomy, prefix, number)
        if label == LANGUAGE:
            if layer not in self.language_layers:
                is_predicted = number < self.anatomy.n_layers + self.n_predicted
                label = LAST_LAYERS if is_predicted else BEYOND
            elif _is_vector(tensor):
                return _vectors(LANGUAGE), layer
            elif _is_expert(suffix) or ("shared_expert" in suffix and not _has_experts(self.anatomy)):
                label = EXTRA_EXPERTS
            elif (purpose := auxiliary_label(suffix)) is not None:
                return ModelPart(f"{purpose} of the {LANGUAGE}", PartKind.AUXILIARY, LANGUAGE), layer
            else:
                return ModelPart("", PartKind.UNPLACED, LANGUAGE, "no known role in its layer"), layer
        if label == CONNECTOR:
            return (_vectors(CONNECTOR) if _is_vector(tensor) else ModelPart(CONNECTOR, PartKind.CONNECTOR)), layer
        if _is_vector(tensor):
            return _vectors(label), layer
        if _is_expert(suffix) and label != EXTRA_EXPERTS:
            return ModelPart(f"experts of the {label}", PartKind.EXPERTS, label), layer
        return ModelPart(label, PartKind.STACK), layer

    def _outside(self, tensor: StoredTensor, name: str) -> ModelPart:
        components = name.split(".")[:-1] or [name]
        if connector_in(components) is not None or connector_in([name.rpartition(".")[2]]) is not None:
            return _vectors(CONNECTOR) if _is_vector(tensor) else ModelPart(CONNECTOR, PartKind.CONNECTOR)
        owner = self._owner(name)
        if owner is not None and owner != LANGUAGE:
            return _vectors(owner) if _is_vector(tensor) else ModelPart(owner, PartKind.STACK)
        label = table_label(name.split("."))
        if label is not None and not _is_vector(tensor):
            return ModelPart(label, PartKind.TABLE)
        if _is_vector(tensor):
            return _vectors(LANGUAGE if owner is None else owner)
        return ModelPart("", PartKind.UNPLACED, None, "no known role outside of the layers")

    def _owner(self, name: str) -> str | None:
        folder = name
        while folder:
            folder = folder.rpartition(".")[0]
            if folder in self.roots:
                return self.roots[folder]
        label = stack_label(name.split("."))
        return None if label is None else label[0]


CONNECTOR = "connector"


def _labels(own_prefixes: set[str], prefixes: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    labels: dict[str, str] = dict.fromkeys(own_prefixes, LANGUAGE)
    roots: dict[str, str] = {}
    unnamed = [prefix for prefix in prefixes - own_prefixes if stack_label(prefix.split(".")) is None]
    for prefix in sorted(prefixes - own_prefixes):
        components = prefix.split(".")
        label = stack_label(components)
        if connector_in(components) is not None:
            labels[prefix] = CONNECTOR
        elif label is not None:
            labels[prefix], at = label
            roots[".".join(components[: at + 1])] = labels[prefix]
        else:
            own_name = f"stack {prefix}" if prefix else "stack without a name"
            labels[prefix] = own_name if len(unnamed) <= MOST_UNNAMED else "other stacks"
            roots[prefix.rpartition(".")[0] or prefix] = labels[prefix]
    for prefix in own_prefixes:
        roots[prefix.rpartition(".")[0]] = LANGUAGE
    return labels, roots


def _is_expert(suffix: str) -> bool:
    return any(word in suffix for word in ("experts.", "expert.")) and "shared" not in suffix


def _has_experts(anatomy: Anatomy) -> bool:
    return any(layer.experts or layer.shared_experts for layer in anatomy.layers)


def _vectors(owner: str) -> ModelPart:
    return ModelPart(f"norms, biases and buffers of the {owner}", PartKind.VECTORS, owner)


def _is_vector(tensor: StoredTensor) -> bool:
    if tensor.name.endswith("bias"):  # stacked experts have a matrix of biases
        return True
    if tensor.shape is None:
        return is_named_like_a_vector(tensor.name)
    return math.prod(tensor.shape) == max(tensor.shape, default=1)


def _part(key: ModelPart, members: list[tuple[StoredTensor, str | None]], anatomy: Anatomy) -> ModelPart:
    sizes = [tensor.n_bytes for tensor, _ in members]
    layers = sorted({layer for _, layer in members if layer is not None}, key=_natural(anatomy))
    name = key.name
    if key.kind is PartKind.UNPLACED:
        name = "unplaced" + ("" if key.owner is None else f" in the {key.owner}") + f": {key.reason}"
    reason = key.reason
    first = next((tensor.reason for tensor, _ in members if tensor.reason is not None), None)
    if reason == UNREADABLE and first is not None:
        reason = f"{UNREADABLE}: {first}"
    is_language = LANGUAGE in (key.name, key.owner) or key.kind is PartKind.TABLE
    return replace(
        key,
        name=name,
        tensors=tuple(sorted(tensor.name for tensor, _ in members)),
        n_bytes=None if None in sizes else sum(size for size in sizes if size is not None),
        layers=tuple(layers) if key.kind in _IN_LAYERS else (),
        decided_by=anatomy.decided_by if is_language else "names",
        reason=reason,
    )


def _natural(anatomy: Anatomy) -> Callable[[str], tuple[int, int, str]]:
    places = {layer.name: at for at, layer in enumerate(anatomy.layers)}

    def key(name: str) -> tuple[int, int, str]:
        number = name.rpartition(".")[2]
        return places.get(name, len(places)), int(number) if number.isdigit() else 0, name

    return key
