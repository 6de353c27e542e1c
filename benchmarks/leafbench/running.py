"""Runs a suite: every model read once for its screen, or pair by pair at a higher level; nothing is computed twice."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.leafbench.suites import LabelledPair, Suite
from mdir_hf import HomologyChecker
from mdir_hf._version import __version__
from mdir_hf.comparison.settings import Settings
from mdir_hf.errors import InputError, MdirError
from mdir_hf.lineage.fingerprints.fingerprint import sample_name
from mdir_hf.lineage.fingerprints.sample import choose_tokens
from mdir_hf.lineage.fingerprints.store import FingerprintStore
from mdir_hf.lineage.survey.results import RESULTS, ModelResult, PairResult, ResultFile
from mdir_hf.lineage.survey.run import FINGERPRINTS, SAMPLE
from mdir_hf.lineage.survey.work import compare_tile, open_model, take
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import Reading


@dataclass(frozen=True)
class RunSettings:
    """How a suite is run.

    Attributes:
        level: ``screen`` compares sampled rows of embeddings; the others are those of ``HomologyChecker.compare``.
        alpha: Level of every pair by itself: labels are judged one by one.
        seed: Seed of every random choice.
        n_tokens: Rows read of every model for a screen.
        shard: Which part of the references, and of how many.
        reading: How repositories are opened.
    """

    level: str = "screen"
    alpha: float = 1e-10
    seed: int = 0
    n_tokens: int = 2048
    shard: tuple[int, int] = (0, 1)
    reading: Reading = Reading()


def run_suite(suite: Suite, folder: Path, settings: RunSettings) -> Iterator[PairResult]:
    """Compare every pair of a shard that has no result yet, and yield each when it is on the disk.

    Args:
        suite: What to compare.
        folder: Where results go: a file as that of a survey, and kept rows. Each shard needs a folder of its own.
        settings: How.

    Yields:
        The results that are new. A pair that could not be computed has its error, and is tried again next time.

    Raises:
        InputError: If the folder holds a run of other settings, or nothing can be opened.
    """
    at, n_shards = settings.shard
    if not 0 <= at < n_shards:
        raise InputError(f"there is no shard {at} of {n_shards}; they are numbered from 0")
    folder.mkdir(parents=True, exist_ok=True)
    asked = {
        "names": list(suite.models),
        "suite": suite.name,
        "level": settings.level,
        "alpha": settings.alpha,
        "alpha_of_pair": settings.alpha,
        "seed": settings.seed,
        "shard": list(settings.shard),
        "version": __version__,
    }
    if settings.level == "screen":
        tokens = _sample(suite, folder / SAMPLE, settings)
        results = ResultFile(folder / RESULTS, {**asked, "sample": sample_name(tokens)})
        yield from _screen(_left(suite, results, settings), folder, tokens, results, settings)
    else:
        results = ResultFile(folder / RESULTS, asked)
        yield from _compare(_left(suite, results, settings), results, settings)


def _left(suite: Suite, results: ResultFile, settings: RunSettings) -> list[LabelledPair]:
    done = {pair for pair, found in results.pairs.items() if found.error is None}
    return [pair for pair in suite.part(settings.shard) if (pair.reference, pair.candidate) not in done]


def _screen(
    pairs: Sequence[LabelledPair], folder: Path, tokens: Sequence[bytes], results: ResultFile, settings: RunSettings
) -> Iterator[PairResult]:
    store = FingerprintStore(folder / FINGERPRINTS, sample_name(tokens))
    errors: dict[str, str] = {}

    def fingerprint(name: str) -> Any:
        kept = store.get(name)
        if kept is None and name not in errors:
            taken = take(name, tokens, settings.reading)
            kept, model = taken.fingerprint, None if taken.fingerprint is None else taken.fingerprint.model
            results.add_model(ModelResult(name, model, taken.error, taken.bytes_read))
            if kept is None:
                errors[name] = taken.error or "unknown"
            else:
                store.put(name, kept)
        return kept

    for pair in pairs:
        names = (pair.reference, pair.candidate)
        sides = {name: fingerprint(name) for name in names}
        missing = [name for name, kept in sides.items() if kept is None]
        if missing:
            found = PairResult(*names, None, error=f"{missing[0]}: {errors[missing[0]]}")
        else:
            (found,) = compare_tile(sides, [names], alpha=settings.alpha, seed=settings.seed)
        results.add_pairs([found])
        yield found


def _compare(pairs: Sequence[LabelledPair], results: ResultFile, settings: RunSettings) -> Iterator[PairResult]:
    for reference, group in groupby(pairs, key=lambda pair: pair.reference):
        checker: HomologyChecker | None = None
        error = ""
        try:
            asked = Settings(alpha=settings.alpha, seed=settings.seed)
            checker = HomologyChecker.from_pretrained(reference, reading=settings.reading, settings=asked)
        except MdirError as exc:
            error = _one_line(exc)
        for pair in group:
            found = PairResult(reference, pair.candidate, None, error=f"{reference}: {error}")
            if checker is not None:
                try:
                    report = checker.compare(pair.candidate, level=settings.level, progress=False)
                    found = PairResult.of(reference, pair.candidate, report)
                except (MdirError, MemoryError) as exc:
                    found = PairResult(reference, pair.candidate, None, error=_one_line(exc))
            results.add_pairs([found])
            yield found


def _sample(suite: Suite, path: Path, settings: RunSettings) -> tuple[bytes, ...]:
    """Choose the tokens once for the whole suite, so that shards read the same rows and a later run reads none anew."""
    asked = {"suite": suite.name, "n_tokens": settings.n_tokens, "seed": settings.seed}
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        if {key: known.get(key) for key in asked} != asked:
            raise InputError("it was made for another suite, or other options; name another folder", subject=str(path))
        return tuple(base64.b64decode(token) for token in known["tokens"])
    vocabularies, failure = [], ""
    for name in suite.models:
        try:
            vocabulary = open_model(name, settings.reading, IoLedger()).vocabulary
            if vocabulary is not None:
                vocabularies.append(vocabulary)
        except MdirError as exc:
            failure = failure or f"{name}: {_one_line(exc)}"
    if not vocabularies:
        raise InputError(f"none of the {len(suite.models)} models can be opened; the first: {failure}")
    tokens = choose_tokens(vocabularies, settings.n_tokens, seed=settings.seed)
    text = json.dumps({**asked, "tokens": [base64.b64encode(token).decode() for token in tokens]})
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return tokens


def _one_line(exc: BaseException) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__
