"""Read PEFT's ``adapter_config.json`` (peft 0.21, ``tuners/lora``)."""

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
from mdir_hf.model.sources import FileTree
from mdir_hf.validation import AS_WRITTEN, read_json

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""File names, in PEFT's order of preference."""

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
"""Initialisations that subtract the initial B A from the base. The config names the original base, so B A is not the
whole difference."""

_NOT_APPLIED = {
    "alora_invocation_tokens": "is switched on by certain tokens (aLoRA)",
    "arrow_config": "is routed between several adapters (Arrow)",
    "kasa_config": "replaces the base by a truncated one (KaSA)",
    "monteclora_config": "is a distribution of adapters (MonteCLoRA)",
    "use_bdlora": "has block-diagonal factors (BD-LoRA)",
    "use_qalora": "pools the inputs of its factors (QA-LoRA)",
    "velora_config": "compresses what it reads (VeLoRA)",
}

# Patterns in a config are regular expressions, so a hostile one could run forever. Real configs use plain names.
_PLAIN_PATTERN = re.compile(r"\^?[\w.-]+\$?")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """An adapter's settings.

    Attributes:
        changes_weights: False for methods such as prompt tuning.
        alpha_pattern: Alpha for modules that override it, keyed by name suffix.
        is_rank_stabilized: Whether alpha is divided by the square root of the rank (rsLoRA).
        is_transposed: Whether square matrices are stored ``(d_in, d_out)``.
        has_magnitudes: Whether rows are rescaled to learned lengths (DoRA).
        token_rows: Numbers of the replaced rows, keyed by module name suffix; an empty suffix means the embedding.
        ties_weights: Whether a tied head follows a retrained embedding.
        parameters: Name suffixes listed in ``target_parameters``.
        not_applied: Reason why changed tensors cannot be read, completing "an adapter that …", or None.
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
    ties_weights: bool = False
    parameters: tuple[str, ...] = ()
    settings: KindSettings = field(default_factory=KindSettings)
    not_applied: str | None = None

    @property
    def method(self) -> str:
        """Display name of the method."""
        if self.kind == "LORA":
            return "DoRA" if self.has_magnitudes else "LoRA"
        return _LEAVES_WEIGHTS_ALONE.get(self.kind) or _METHODS.get(self.kind, f"{self.kind[:40]}")

    @property
    def recipe(self) -> str:
        """The settings that affect the result, as text."""
        switches = (self.is_rank_stabilized, self.is_transposed, self.has_magnitudes)
        alphas, rows = list(self.alpha_pattern.items()), sorted(self.token_rows.items())
        return repr((self.kind, self.alpha, alphas, *switches, rows, self.parameters, self.settings))

    def scaling(self, module: str, rank: int) -> float:
        """Return the factor applied to B A in a module."""
        alphas = (value for pattern, value in self.alpha_pattern.items() if _ends_with(module, pattern))
        alpha = next(alphas, self.alpha)
        return alpha / math.sqrt(rank) if self.is_rank_stabilized else alpha / rank


_Rank = Annotated[int, Ge(1), Le(1 << 20)]
_Rows = list[Annotated[int, Ge(0)]]


@dataclass(frozen=True)
class _Peft:
    __pydantic_config__ = AS_WRITTEN
    peft_type: str | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None
    token_indices: _Rows | dict[str, _Rows] | None = None


@dataclass(frozen=True)
class _OtherKind:
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
    """Return whether a tree's root contains an adapter."""
    return ADAPTER_CONFIG in tree.files and any(name in tree.files for name in ADAPTER_WEIGHTS)


def read_adapter_config(tree: FileTree) -> AdapterConfig:
    """Read and check an adapter's config.

    Raises:
        CorruptCheckpointError: If the file is not a valid adapter config.
        UnsupportedFormatError: If the adapter repeats layers of its base, or its config is too large.
    """
    label = f"{tree.label}:{ADAPTER_CONFIG}"
    data = tree.read(ADAPTER_CONFIG, max_bytes=budgets.ADAPTER_CONFIG.n_bytes)
    excess = budgets.ADAPTER_CONFIG.excess(n_items=budgets.json_weight(data), of="values")
    if excess is not None:
        raise UnsupportedFormatError(f"{_WHAT} {excess}", subject=label)
    entries = read_json(data, _Peft, what=_WHAT, label=label)
    kind, revision = entries.peft_type or "LORA", entries.revision or None
    base = entries.base_model_name_or_path or None
    if kind in _LEAVES_WEIGHTS_ALONE:
        return AdapterConfig(kind, False, base, revision)
    if kind == "TRAINABLE_TOKENS":
        return AdapterConfig(kind, True, base, revision, token_rows=_by_module(entries.token_indices))
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
        why = f"started from a part that was subtracted from its base (init_lora_weights {start[:40]!r})"
    targets = features.get("target_parameters")
    parameters = tuple(sorted(map(str, targets))) if isinstance(targets, list) else ()
    lora = read_json(data, _Lora, what=_WHAT, label=label)
    for name in lora.alpha_pattern or ():
        if not _PLAIN_PATTERN.fullmatch(name):
            why = f"has the regular expression {name[:80]!r} in its alpha_pattern; only plain endings are supported"
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
        ties_weights=bool(features.get("ensure_weight_tying")),
        parameters=parameters,
        not_applied=why,
    )


def _other_kind(kind: str, base: str | None, revision: str | None, data: bytes, label: str) -> AdapterConfig:
    if kind == "LN_TUNING":
        return AdapterConfig(kind, True, base, revision)
    if kind not in KINDS:
        unknown = f"is of the unsupported type {kind[:40]!r}; {_MERGE}"
        return AdapterConfig(kind, True, base, revision, not_applied=unknown)
    entries = read_json(data, _OtherKind, what=_WHAT, label=label)
    why: str | None = None
    if entries.coft:
        why = "keeps its rotations near the identity (coft)"
    elif entries.fan_in_fan_out:
        why = "is on weights that are stored transposed (fan_in_fan_out)"
    elif any(not _PLAIN_PATTERN.fullmatch(name) for name in entries.alpha_pattern or ()):
        why = "has regular expressions in its alpha_pattern; only plain endings are supported"
    alpha = next((value for value in (entries.alpha, entries.lora_alpha) if value is not None), 8.0)
    settings = KindSettings(
        alpha=float(alpha),
        rank=entries.r,
        uses_neumann=bool(entries.use_cayley_neumann),
        n_neumann_terms=entries.num_cayley_neumann_terms,
        shares_blocks=bool(entries.block_share),
    )
    return AdapterConfig(
        kind,
        True,
        base,
        revision,
        rank=max(1, entries.r),
        alpha=float(alpha),
        alpha_pattern={name: float(value) for name, value in (entries.alpha_pattern or {}).items()},
        settings=settings,
        ranks=frozenset({0}) if entries.rank_pattern else frozenset(),
        not_applied=why,
    )


def _by_module(rows: _Rows | dict[str, _Rows] | None) -> dict[str, tuple[int, ...]]:
    rows_by_module = rows if isinstance(rows, dict) else {} if rows is None else {"": rows}
    return {module: tuple(numbers) for module, numbers in rows_by_module.items()}


def _ends_with(module: str, pattern: str) -> bool:
    name = pattern.removesuffix("$")
    if name.startswith("^"):
        return module == name[1:]
    return module == name or module.endswith("." + name)
