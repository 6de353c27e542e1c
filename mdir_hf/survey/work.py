"""What a survey gives to its workers: plain functions of plain arguments, so that any executor can run them anywhere.

They return failures as results. What escapes them is a worker's death or a mistake of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mdir_hf.comparison.model import Model
from mdir_hf.errors import MdirError
from mdir_hf.hub import IoLedger, open_repository
from mdir_hf.survey.fingerprint import Fingerprint, take_fingerprint
from mdir_hf.survey.pairs import compare_fingerprints
from mdir_hf.survey.results import PairResult


@dataclass(frozen=True)
class Taken:
    """The outcome of reading one model.

    Attributes:
        name: As it was asked for.
        fingerprint: Its rows; None where it could not be read.
        error: Why it could not be read.
        bytes_read: Bytes read of it.
    """

    name: str
    fingerprint: Fingerprint | None
    error: str | None
    bytes_read: int


def open_model(name: str, options: Mapping[str, Any], ledger: IoLedger) -> Model:
    """Open a model by name; ``options`` are those of ``open_repository``.

    Raises:
        MdirError: If it cannot be opened.
    """
    bases = {key: value for key, value in options.items() if key not in ("revision", "subfolder")}
    return Model(
        open_repository(name, ledger=ledger, **options), open_other=partial(open_repository, ledger=ledger, **bases)
    )


def take(name: str, tokens: Sequence[bytes], options: Mapping[str, Any]) -> Taken:
    """Open a model and read its rows of the sample."""
    ledger = IoLedger()
    try:
        return Taken(name, take_fingerprint(open_model(name, options, ledger), tokens), None, ledger.bytes_read)
    except (MdirError, OSError, MemoryError) as exc:
        return Taken(name, None, _one_line(exc), ledger.bytes_read)


def compare_tile(
    fingerprints: Mapping[str, Fingerprint], pairs: Sequence[tuple[str, str]], *, alpha: float, seed: int
) -> list[PairResult]:
    """Compare some pairs of a few models.

    Args:
        fingerprints: By name.
        pairs: Names, reference first.
        alpha: Level of one pair.
        seed: Seed of every random choice; that of a pair does not depend on the others.
    """
    results = []
    for reference, candidate in pairs:
        try:
            report = compare_fingerprints(fingerprints[reference], fingerprints[candidate], alpha=alpha, seed=seed)
            results.append(PairResult.of(reference, candidate, report))
        except (MdirError, ArithmeticError, RuntimeError, ValueError, MemoryError) as exc:
            results.append(PairResult(reference, candidate, None, error=_one_line(exc)))
    return results


def _one_line(exc: BaseException) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__
