"""``adapter_config.json`` of PEFT: how an adapter changes its base, or why it is not supported.

Source: peft 0.21, ``tuners/lora/config.py`` and ``tuners/lora/layer.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from annotated_types import Ge, Le

from mdir_hf import budgets
from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.model.files.adapters.row_changes import KINDS, KindSettings
from mdir_hf.model.files.json_object import AS_WRITTEN, read_json
from mdir_hf.model.files.sources import FileTree

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""In the order in which PEFT looks for them."""

_WHAT = "the config of the adapter"
_MERGE = "merge it (`model.merge_and_unload()`) and compare the result"

_LEAVES_WEIGHTS_ALONE = {
    "PROMPT_TUNING": "prompt tuning",
    "MULTITASK_PROMPT_TUNING": "multitask prompt tuning",
    "P_TUNING": "P-tuning",
    "PREFIX_TUNING": "prefix tuning",
    "CPT": "context-aware prompt tuning",
    "CARTRIDGE": "a cartridge (a trained prefix)",
    "ADAPTION_PROMPT": "adaption prompts (LLaMA-Adapter)",
}

_METHODS = {
    "TRAINABLE_TOKENS": "retrained tokens",
    "LOHA": "LoHa",
    "LOKR": "LoKr",
    "VERA": "VeRA",
    "ADALORA": "AdaLoRA",
    "LN_TUNING": "retrained norms",
}

_MOVES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that subtract the first value of B A from the base when an adapter is made: B A alone is then no
difference to the base that its config names. PEFT converts them (``path_initial_model_for_weight_conversion``)."""

_NOT_APPLIED = {
    "alora_invocation_tokens": "is switched on by certain tokens (aLoRA)",
    "arrow_config": "is routed between several adapters (Arrow)",
    "kasa_config": "replaces the base by a truncated one (KaSA)",
    "monteclora_config": "is a distribution of adapters (MonteCLoRA)",
    "use_bdlora": "has block-diagonal factors (BD-LoRA)",
    "use_qalora": "pools the inputs of its factors (QA-LoRA)",
    "velora_config": "compresses what it reads (VeLoRA)",
}

# Patterns of a config are regular expressions, which a hostile one can make run forever. Those in use are names.
_PLAIN_PATTERN = re.compile(r"\^?[\w.-]+\$?")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What an adapter says about itself.

    Attributes:
        kind: ``LORA``, ``TRAINABLE_TOKENS``, or one of the methods that leave the weights of the base as they are.
        changes_weights: Whether it changes any.
        base: Its base model as named there, None if it is not.
        base_revision: Revision of the base, None for its default.
        rank: Of the factors, unless ``rank_pattern`` says otherwise.
        ranks: Every rank that a pattern gives.
        alpha: ``lora_alpha``.
        alpha_pattern: Another alpha for modules whose name ends so.
        is_rank_stabilized: Whether alpha is divided by the root of the rank (rsLoRA).
        is_transposed: Whether square matrices are stored ``(d_in, d_out)``; others show it by their shape.
        has_magnitudes: Whether rows are rescaled to learnt lengths (DoRA).
        token_rows: Module to the rows that are replaced, by the end of its name; an empty name: the embedding.
        parameters: Ends of names of parameters that it changes although they are no modules (``target_parameters``).
        settings: What decides the meaning of the tensors of another kind than LoRA.
        not_applied: Why the changes that it makes are not computed here, to follow "this adapter"; None if they are.
            The tensors that it changes cannot be read then; all others are those of the base.
    """

    kind: str
    changes_weights: bool
    base: str | None
    base_revision: str | None
    rank: int = 1
    ranks: frozenset[int] = frozenset()
    alpha: float = 1.0
    alpha_pattern: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    is_rank_stabilized: bool = False
    is_transposed: bool = False
    has_magnitudes: bool = False
    token_rows: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    parameters: tuple[str, ...] = ()
    settings: KindSettings = field(default_factory=KindSettings)
    not_applied: str | None = None

    @property
    def method(self) -> str:
        """How a user would call it."""
        if self.kind == "LORA":
            return "DoRA" if self.has_magnitudes else "LoRA"
        return _LEAVES_WEIGHTS_ALONE.get(self.kind) or _METHODS.get(self.kind, f"{self.kind[:40]}")

    @property
    def recipe(self) -> str:
        """All that decides, beside its tensors, what it makes of a base; equal for adapters that do the same."""
        switches = (self.is_rank_stabilized, self.is_transposed, self.has_magnitudes)
        alphas, rows = list(self.alpha_pattern.items()), sorted(self.token_rows.items())
        return repr((self.kind, self.alpha, alphas, *switches, rows, self.parameters, self.settings))

    def scaling(self, module: str, rank: int) -> float:
        """What B A is multiplied by in one module."""
        own = (value for pattern, value in self.alpha_pattern.items() if _ends_with(module, pattern))
        alpha = next(own, self.alpha)
        return alpha / math.sqrt(rank) if self.is_rank_stabilized else alpha / rank


_Rank = Annotated[int, Ge(1), Le(1 << 20)]
_Rows = list[Annotated[int, Ge(0)]]


@dataclass(frozen=True)
class _Peft:
    """What the config of any adapter says."""

    __pydantic_config__ = AS_WRITTEN
    peft_type: str | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None
    token_indices: _Rows | dict[str, _Rows] | None = None


@dataclass(frozen=True)
class _OtherKind:
    """What the config of another kind says besides; defaults are those of PEFT."""

    __pydantic_config__ = AS_WRITTEN
    r: Annotated[int, Ge(0), Le(1 << 20)] = 8
    alpha: float | None = None
    lora_alpha: float | None = None
    alpha_pattern: dict[str, float] | None = None
    rank_pattern: dict[str, object] | None = None
    block_share: object = None
    coft: object = None
    use_cayley_neumann: object = True
    num_cayley_neumann_terms: Annotated[int, Ge(0), Le(64)] = 5
    fan_in_fan_out: object = None


@dataclass(frozen=True)
class _Lora:
    """What the config of a LoRA adapter says besides; defaults are those of PEFT."""

    __pydantic_config__ = AS_WRITTEN
    r: _Rank = 8
    rank_pattern: dict[str, _Rank] | None = None
    lora_alpha: float = 8
    alpha_pattern: dict[str, float] | None = None
    use_rslora: object = None
    fan_in_fan_out: object = None
    use_dora: object = None
    trainable_token_indices: _Rows | dict[str, _Rows] | None = None


def has_adapter(tree: FileTree) -> bool:
    """Whether the root of a tree holds a PEFT adapter: its config and its weights."""
    return ADAPTER_CONFIG in tree.files and any(name in tree.files for name in ADAPTER_WEIGHTS)


def read_adapter_config(tree: FileTree) -> AdapterConfig:
    """Read and check the config of the adapter in the root of a tree.

    Raises:
        CorruptCheckpointError: If it is not a config, or has values that cannot be.
        UnsupportedFormatError: If the adapter does something to the weights that is not computed here; says what.
    """
    label = f"{tree.label}:{ADAPTER_CONFIG}"
    data = tree.read(ADAPTER_CONFIG, max_bytes=budgets.ADAPTER_CONFIG.n_bytes)
    excess = budgets.ADAPTER_CONFIG.excess(n_items=budgets.json_weight(data), of="values")
    if excess is not None:
        raise UnsupportedFormatError(f"{_WHAT} {excess}", subject=label)
    said = read_json(data, _Peft, what=_WHAT, label=label)
    kind, base, revision = said.peft_type or "LORA", said.base_model_name_or_path or None, said.revision or None
    if kind in _LEAVES_WEIGHTS_ALONE:
        return AdapterConfig(kind, False, base, revision)
    if kind == "TRAINABLE_TOKENS":
        return AdapterConfig(kind, True, base, revision, token_rows=_by_module(said.token_indices))
    features = read_json(data, dict[str, object], what=_WHAT, label=label)
    if features.get("layer_replication"):
        raise UnsupportedFormatError(
            f"this LoRA adapter on {base!r} repeats layers of its base (layer_replication), so its weights are not "
            f"W + s B A; {_MERGE}",
            subject=label,
        )
    if kind != "LORA":
        return _other_kind(kind, base, revision, data, label)
    why = next((why for feature, why in _NOT_APPLIED.items() if features.get(feature)), None)
    start = features.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_MOVES_THE_BASE):
        why = f"was started from a part of its base that was taken out of it (init_lora_weights {start[:40]!r})"
    targets = features.get("target_parameters")
    parameters = tuple(sorted(map(str, targets))) if isinstance(targets, list) else ()
    lora = read_json(data, _Lora, what=_WHAT, label=label)
    for name in lora.alpha_pattern or ():
        if not _PLAIN_PATTERN.fullmatch(name):
            why = f"has the regular expression {name[:80]!r} in its alpha_pattern; only plain ends of names are read"
    return AdapterConfig(
        kind,
        True,
        base,
        revision,
        rank=lora.r,
        ranks=frozenset((lora.rank_pattern or {}).values()),
        alpha=float(lora.lora_alpha),
        alpha_pattern={name: float(alpha) for name, alpha in (lora.alpha_pattern or {}).items()},
        is_rank_stabilized=bool(lora.use_rslora),
        is_transposed=bool(lora.fan_in_fan_out),
        has_magnitudes=bool(lora.use_dora),
        token_rows=_by_module(lora.trainable_token_indices),
        parameters=parameters,
        not_applied=why,
    )


def _other_kind(kind: str, base: str | None, revision: str | None, data: bytes, label: str) -> AdapterConfig:
    """The config of an adapter of another kind than LoRA."""
    if kind == "LN_TUNING":
        return AdapterConfig(kind, True, base, revision)
    if kind not in KINDS:
        unknown = f"is of the type {kind[:40]!r}, which is not applied here; {_MERGE}"
        return AdapterConfig(kind, True, base, revision, not_applied=unknown)
    said = read_json(data, _OtherKind, what=_WHAT, label=label)
    why: str | None = None
    if said.coft:
        why = "keeps its rotations near the identity (coft)"
    elif said.fan_in_fan_out:
        why = "is on weights that are stored transposed (fan_in_fan_out)"
    elif any(not _PLAIN_PATTERN.fullmatch(name) for name in said.alpha_pattern or ()):
        why = "has regular expressions in its alpha_pattern; only plain ends of names are read"
    alpha = next((value for value in (said.alpha, said.lora_alpha) if value is not None), 8.0)
    settings = KindSettings(
        alpha=float(alpha),
        rank=said.r,
        uses_neumann=bool(said.use_cayley_neumann),
        n_neumann_terms=said.num_cayley_neumann_terms,
        shares_blocks=bool(said.block_share),
    )
    return AdapterConfig(
        kind,
        True,
        base,
        revision,
        rank=max(1, said.r),
        alpha=float(alpha),
        alpha_pattern={name: float(value) for name, value in (said.alpha_pattern or {}).items()},
        settings=settings,
        ranks=frozenset({0}) if said.rank_pattern else frozenset(),
        not_applied=why,
    )


def _by_module(rows: _Rows | dict[str, _Rows] | None) -> dict[str, tuple[int, ...]]:
    named = rows if isinstance(rows, dict) else {} if rows is None else {"": rows}
    return {module: tuple(numbers) for module, numbers in named.items()}


def _ends_with(module: str, pattern: str) -> bool:
    """Whether a pattern means a module, as PEFT matches: all of its name, or its end from a dot on."""
    name = pattern.removesuffix("$")
    if name.startswith("^"):
        return module == name[1:]
    return module == name or module.endswith("." + name)
