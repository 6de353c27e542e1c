"""``adapter_config.json`` of PEFT: what an adapter does to the weights of its base, or why that is not computed here.

Source: peft 0.21, ``tuners/lora/config.py`` and ``tuners/lora/layer.py``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn

from ...errors import CorruptCheckpointError, UnsupportedFormatError
from ..sources import FileTree

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""In the order in which PEFT looks for them."""

MAX_CONFIG_N_BYTES = 4 << 20
_MAX_RANK = 1 << 20

_LEAVES_WEIGHTS_ALONE = {
    "PROMPT_TUNING": "prompt tuning",
    "MULTITASK_PROMPT_TUNING": "multitask prompt tuning",
    "P_TUNING": "P-tuning",
    "PREFIX_TUNING": "prefix tuning",
    "CPT": "context-aware prompt tuning",
    "CARTRIDGE": "a cartridge (a trained prefix)",
    "ADAPTION_PROMPT": "adaption prompts (LLaMA-Adapter)",
}
_KINDS = ("LORA", "TRAINABLE_TOKENS")

_MOVES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that subtract the first value of B A from the base when an adapter is made: B A alone is then no
difference to the base that its config names. PEFT converts them (``path_initial_model_for_weight_conversion``)."""

_REFUSED_FEATURES = {
    "alora_invocation_tokens": "is switched on by certain tokens (aLoRA)",
    "arrow_config": "is routed between several adapters (Arrow)",
    "kasa_config": "replaces the base by a truncated one (KaSA)",
    "layer_replication": "repeats layers of its base (layer_replication)",
    "monteclora_config": "is a distribution of adapters (MonteCLoRA)",
    "target_parameters": "changes parameters that are no layers of their own (target_parameters)",
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

    @property
    def method(self) -> str:
        """How a user would call it."""
        if self.kind == "LORA":
            return "DoRA" if self.has_magnitudes else "LoRA"
        return _LEAVES_WEIGHTS_ALONE.get(self.kind, "retrained tokens")

    @property
    def recipe(self) -> str:
        """All that decides, beside its tensors, what it makes of a base; equal for adapters that do the same."""
        rows = sorted((module, numbers) for module, numbers in self.token_rows.items())
        return repr(
            (
                self.kind,
                self.alpha,
                list(self.alpha_pattern.items()),
                self.is_rank_stabilized,
                self.is_transposed,
                self.has_magnitudes,
                rows,
            )
        )

    def scaling(self, module: str, rank: int) -> float:
        """What B A is multiplied by in one module."""
        alpha = self.alpha
        for pattern, value in self.alpha_pattern.items():
            if _ends_with(module, pattern):
                alpha = value
                break
        return alpha / math.sqrt(rank) if self.is_rank_stabilized else alpha / rank


def has_adapter(tree: FileTree) -> bool:
    """Whether the root of a tree holds a PEFT adapter: its config and its weights."""
    return ADAPTER_CONFIG in tree.files and any(name in tree.files for name in ADAPTER_WEIGHTS)


def read_adapter_config(tree: FileTree) -> AdapterConfig:
    """Read and check the config of the adapter in the root of a tree.

    Raises:
        CorruptCheckpointError: If it is no config, or has values that cannot be.
        UnsupportedFormatError: If the adapter does something to the weights that is not computed here; says what.
    """
    label = f"{tree.label}:{ADAPTER_CONFIG}"
    data = tree.read(ADAPTER_CONFIG, max_bytes=MAX_CONFIG_N_BYTES)
    try:
        loaded = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise CorruptCheckpointError(f"the config of the adapter is not JSON: {exc}", subject=label) from exc
    if not isinstance(loaded, dict):
        raise CorruptCheckpointError("the config of the adapter is no JSON object", subject=label)
    return _Reader(loaded, label).read()


class _Reader:
    def __init__(self, config: Mapping[str, object], label: str) -> None:
        self._config = config
        self._label = label

    def read(self) -> AdapterConfig:
        kind = self._text("peft_type") or "LORA"
        base, revision = self._text("base_model_name_or_path"), self._text("revision")
        if kind in _LEAVES_WEIGHTS_ALONE:
            return AdapterConfig(kind, False, base, revision)
        if kind not in _KINDS:
            raise UnsupportedFormatError(
                f"this is a PEFT adapter of the type {kind[:40]!r} on {base!r}; this version reads LoRA, rsLoRA, DoRA "
                "and retrained tokens; merge it (`model.merge_and_unload()`) and compare the result",
                subject=self._label,
            )
        if kind == "TRAINABLE_TOKENS":
            return AdapterConfig(kind, True, base, revision, token_rows=self._token_rows("token_indices"))
        self._refuse_features(base)
        return AdapterConfig(
            kind,
            True,
            base,
            revision,
            rank=self._rank(self._config.get("r", 8), "r"),
            ranks=frozenset(self._rank(rank, "rank_pattern") for rank in self._object("rank_pattern").values()),
            alpha=self._number(self._config.get("lora_alpha", 8), "lora_alpha"),
            alpha_pattern=self._alpha_pattern(),
            is_rank_stabilized=bool(self._config.get("use_rslora")),
            is_transposed=bool(self._config.get("fan_in_fan_out")),
            has_magnitudes=bool(self._config.get("use_dora")),
            token_rows=self._token_rows("trainable_token_indices"),
        )

    def _refuse_features(self, base: str | None) -> None:
        found = next((why for feature, why in _REFUSED_FEATURES.items() if self._config.get(feature)), None)
        start = self._config.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_MOVES_THE_BASE):
            found = f"was started from a part of its base that was taken out of it (init_lora_weights {start[:40]!r})"
        if found is not None:
            raise UnsupportedFormatError(
                f"this LoRA adapter on {base!r} {found}, so its weights are not W + s B A; merge it "
                "(`model.merge_and_unload()`) and compare the result",
                subject=self._label,
            )

    def _alpha_pattern(self) -> dict[str, float]:
        pattern = self._object("alpha_pattern")
        for name in pattern:
            if not _PLAIN_PATTERN.fullmatch(name):
                raise UnsupportedFormatError(
                    f"its alpha_pattern has the regular expression {name[:80]!r}; only plain ends of names are read; "
                    "merge it (`model.merge_and_unload()`) and compare the result",
                    subject=self._label,
                )
        return {name: self._number(value, "alpha_pattern") for name, value in pattern.items()}

    def _token_rows(self, key: str) -> dict[str, tuple[int, ...]]:
        found = self._config.get(key)
        if found is None:
            return {}
        named = found if isinstance(found, dict) else {"": found}
        rows: dict[str, tuple[int, ...]] = {}
        for module, numbers in named.items():
            if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
                self._fail(f"its {key} are no lists of row numbers")
            rows[module] = tuple(numbers)
        return rows

    def _text(self, key: str) -> str | None:
        found = self._config.get(key)
        if found is not None and not isinstance(found, str):
            self._fail(f"its {key} is {found!r:.80}; expected a text")
        return found or None

    def _object(self, key: str) -> dict[str, object]:
        found = self._config.get(key) or {}
        if not isinstance(found, dict):
            self._fail(f"its {key} is {found!r:.80}; expected an object")
        return found

    def _rank(self, value: object, key: str) -> int:
        if type(value) is not int or not 1 <= value <= _MAX_RANK:
            self._fail(f"its {key} is {value!r:.80}; expected a rank of at least 1")
        return value

    def _number(self, value: object, key: str) -> float:
        if type(value) not in (int, float) or not math.isfinite(_as_float(value)):
            self._fail(f"its {key} is {value!r:.80}; expected a number")
        return _as_float(value)

    def _fail(self, why: str) -> NoReturn:
        raise CorruptCheckpointError(f"the config of the adapter cannot be right: {why}", subject=self._label)


def _as_float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):
        return math.inf


def _ends_with(module: str, pattern: str) -> bool:
    """Whether a pattern means a module, as PEFT matches: all of its name, or its end from a dot on."""
    name = pattern.removesuffix("$")
    if name.startswith("^"):
        return module == name[1:]
    return module == name or module.endswith("." + name)
