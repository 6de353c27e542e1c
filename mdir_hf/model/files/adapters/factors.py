"""Read an adapter's factors that have names of their own, as torchtune's, under PEFT's names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.model.files.kinds import FactorPair
from mdir_hf.model.files.ranged import IntArray
from mdir_hf.model.sources import Description, ListsContents, StoredTensor, TensorSource, TensorSpec

_PEFT = re.compile(r".*\.lora_(?:embedding_)?[AB](?:\.|$).*")
_TORCHTUNE = re.compile(r".*\.lora_[ab](?:\.|$).*")
_WORDS = re.compile(r"[._]")
_NUMBERS = re.compile(r"(?:^|[._])(\d+)(?=[._]|$)")

OTHER_ORDER = "has torchtune's order of rows within a head of queries and keys, which depends on the family"


class NamedFactors:
    """The factors of an adapter under PEFT's names. Implements ``TensorSource``.

    A pair with an unknown name belongs to the base's matrix with the same layer number and shape whose name has most
    words in common.

    Attributes:
        doubts: Reasons why modules cannot be read, keyed by module.

    Raises:
        UnsupportedFormatError: If a pair fits no weight of the base, or several equally well.
    """

    def __init__(self, factors: TensorSource, pairs: Mapping[str, FactorPair], base: TensorSource) -> None:
        self._factors = factors
        self.label = factors.label
        self.doubts: dict[str, str] = {}
        self._stored = {name: name for name in factors.names()}
        if any(_PEFT.fullmatch(name) for name in self._stored):
            return
        by_place: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name in base.names():
            by_place[_numbers(name)].append(name)
        for module, pair in pairs.items():
            weight = _most_alike(module, pair, by_place, base)
            if weight is None:
                raise UnsupportedFormatError(
                    f"the adapter's factors {pair.a!r} and {pair.b!r} give a change of shape {pair.shape}, and it is "
                    f"unclear which weight of {base.label} they change; merge the adapter and compare the result",
                    subject=factors.label,
                )
            named = weight.removesuffix(".weight")
            for stored, factor in ((pair.a, "lora_A"), (pair.b, "lora_B")):
                del self._stored[stored]
                self._stored[f"{named}.{factor}.weight"] = stored
            if _TORCHTUNE.fullmatch(pair.a) and {"q", "k"} & set(_WORDS.split(module.rpartition(".")[2])):
                self.doubts[named] = OTHER_ORDER

    @property
    def n_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._factors.n_bytes

    @property
    def paths(self) -> tuple[str, ...]:
        """The file."""
        return self._factors.paths

    @property
    def description(self) -> Description:
        """The file's description."""
        return self._factors.description

    def names(self) -> tuple[str, ...]:
        """Return the sorted names."""
        return tuple(sorted(self._stored))

    def spec(self, name: str) -> TensorSpec:
        """Return a factor's spec."""
        return replace(self._factors.spec(self._stored.get(name, name)), name=name)

    def read(self, name: str) -> torch.Tensor:
        """Return a whole factor."""
        return self._factors.read(self._stored.get(name, name))

    def read_rows(self, name: str, rows: IntArray, *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Return rows of a factor."""
        return self._factors.read_rows(self._stored.get(name, name), rows, max_gap_bytes=max_gap_bytes)

    def contents(self) -> Iterator[StoredTensor]:
        """Yield every tensor."""
        named = {stored: name for name, stored in self._stored.items()}
        for tensor in self._factors.contents() if isinstance(self._factors, ListsContents) else ():
            yield replace(tensor, name=named[tensor.name], weight=named[tensor.name])

    def read_all_headers(self) -> None:
        """Read all headers."""
        if isinstance(self._factors, ListsContents):
            self._factors.read_all_headers()


def _numbers(name: str) -> tuple[str, ...]:
    return tuple(_NUMBERS.findall(name))


def _most_alike(
    module: str, pair: FactorPair, by_place: Mapping[tuple[str, ...], list[str]], base: TensorSource
) -> str | None:
    words = module.split(".")
    scores = sorted(
        (
            (words[-1] == name.removesuffix(".weight").rpartition(".")[2], _n_common(module, name), name)
            for name in by_place.get(_numbers(module), ())
            if base.spec(name).shape == pair.shape
        ),
        reverse=True,
    )
    if not scores or (len(scores) > 1 and scores[0][:2] == scores[1][:2]):
        return None
    return scores[0][2]


def _n_common(module: str, name: str) -> int:
    return len(set(_WORDS.split(module)) & set(_WORDS.split(name)))
