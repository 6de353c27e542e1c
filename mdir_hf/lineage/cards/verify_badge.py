"""``mdir-hf verify-badge``: computes a claim again from its pinned commits, and compares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mdir_hf._version import __version__
from mdir_hf.comparison.api import compare
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError
from mdir_hf.lineage.cards.badge_source import BadgeSource, read_badge
from mdir_hf.lineage.cards.branches import BranchHead, branch_head_of, hub_reference
from mdir_hf.lineage.cards.claim import A_FOLDER, PinnedModel, claim_of_report
from mdir_hf.lineage.cards.printable import unquoted
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.report import HomologyReport, Level

SCHEMA = "mdir-hf/badge-check/1"

LEAST_TOLERANCE, RELATIVE_TOLERANCE = 0.5, 1e-5
"""Two values of log10 p agree within the larger of half a decade and a hundred-thousandth; see :func:`agree`."""

TOLERANCE_OF_SAMPLES = 0.05
"""The p of two comparisons of one pair, each with a sample of neurons of its own, agree to this share."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is not as claimed.

    Attributes:
        name: Its name in the report.
        claimed: Its value in the badge or report.
        measured: Its value computed now.
    """

    name: str
    claimed: Any
    measured: Any

    def __str__(self) -> str:
        by = ""
        if isinstance(self.claimed, float) and isinstance(self.measured, float):
            by = f" (off by {abs(self.claimed - self.measured):.3g})"
        return f"{self.name}: claimed {_shown(self.claimed)}, measured {_shown(self.measured)}{by}"


@dataclass(frozen=True, slots=True)
class BadgeCheck:
    """A claim beside what was computed now.

    Attributes:
        state: ``match``; ``stale``: the same at the pinned commits, but a model has changed since; ``different``.
        source: The claim and where it was found.
        differences: The values that are not as claimed.
        branches: The newest commit of each of the two repositories.
        report: The comparison, computed again.
    """

    state: str
    source: BadgeSource
    differences: tuple[Difference, ...]
    branches: tuple[BranchHead, ...]
    report: HomologyReport

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain containers, for JSON."""
        return {
            "schema": SCHEMA,
            "state": self.state,
            "source": self.source.name,
            "kind": self.source.kind,
            "claim": self.source.claim.to_dict(),
            "tolerance": {"log10_p": LEAST_TOLERANCE, "relative": RELATIVE_TOLERANCE},
            "differences": [asdict(one) for one in self.differences],
            "heads": [asdict(one) for one in self.branches],
            "report": self.report.to_dict(),
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def verify_badge(
    source: str | os.PathLike[str],
    *,
    level: Level | None = None,
    reading: Reading = Reading(),
    reference_tokenizer: str | None = None,
    candidate_tokenizer: str | None = None,
    device: str = "cpu",
    max_bytes: int | None = None,
    max_memory_bytes: int | None = None,
    listeners: Listeners = Listeners(),
) -> BadgeCheck:
    """Compare the two models of a badge again, at the commits it names, with its seed, alpha and level.

    Args:
        source: See :func:`~mdir_hf.lineage.cards.badge_source.read_badge`.
        level: Another level than the badge's; then only the verdicts are compared.
        reading: How repositories are opened.
        reference_tokenizer: Repository or folder of the reference's vocabulary, where it was a folder that the claim
            does not name.
        candidate_tokenizer: The same of the candidate.
        device: torch device for the matrix products.
        max_bytes: Most bytes that the comparison may read.
        max_memory_bytes: Refuse what would need more.
        listeners: Who is told of the comparison.

    Returns:
        The claim beside what was computed.

    Raises:
        InputError: If the source holds no claim, or one about a model that is not on the Hub.
        HubError: If a repository or a pinned commit can no longer be read.

    Cost: the comparison, and one API request per repository.
    """
    token, cache_dir = reading.token, reading.cache_dir
    found = read_badge(source, token=token)
    claim = found.claim
    sides = (claim.reference, claim.candidate)
    if any(model.repo is None for model in sides):
        raise InputError(
            "one of its models was a local folder, so nobody else can compute it again; compare two models on the Hub",
            subject=found.name,
        )
    reference, candidate = (
        _opened_as(model, tokenizer, found.name)
        for model, tokenizer in zip(sides, (reference_tokenizer, candidate_tokenizer), strict=True)
    )
    settings = Settings(level or Level(claim.level), claim.alpha, claim.seed, device, max_bytes, max_memory_bytes)
    report = compare(reference, candidate, reading=reading, settings=settings, listeners=listeners)
    differences = tuple(_differences(found, report))
    branches = tuple(branch_head_of(model, token=token, cache_dir=cache_dir) for model in sides)
    is_stale = any(branch.changed for branch in branches)
    state = "different" if differences else "stale" if is_stale else "match"
    return BadgeCheck(state, found, differences, branches, report)


def _opened_as(model: PinnedModel, tokenizer: str | None, source: str) -> NamedModel:
    """Return how to open a model of a claim: on the Hub, and read as it was read then."""
    if tokenizer is None and model.tokenizer == A_FOLDER:
        raise InputError(
            f"the vocabulary of {model.repo} was read from a local folder; name one with --reference-tokenizer or "
            "--candidate-tokenizer",
            subject=source,
        )
    if tokenizer is None and model.tokenizer is not None:
        tokenizer = f"hf://models/{model.tokenizer}"
    return NamedModel(
        hub_reference(model.repo or "", model.commit, model.file),
        subfolder=model.subfolder or "",
        variant=model.variant,
        tokenizer=tokenizer,
        bases=model.bases or (),
    )


def agree(claimed: float, measured: float, *, relative: float = RELATIVE_TOLERANCE) -> bool:
    """Tell whether two values of log10 p differ by rounding alone.

    Seed, rows and formula are the same, so only the order of summation differs: it depends on the processor and on the
    number of threads. Measured (docs/LOG.md, 2026-11-21), that changes log10 p by about 1e-15 of it in float64 and
    by about 1e-7 in float32; a hundred times that is allowed. p can be the small difference of two large terms, ln n!
    and half the squared trace, so the same share of those (6e4 decades each at n = 16384) is allowed in any case.
    """
    return abs(claimed - measured) <= max(LEAST_TOLERANCE, relative * abs(claimed))


# What else of a report has to be the same, part by part; log10 p of each part within the tolerance.
_OF_MODEL = ("architecture", "hidden_size", "layers", "vocabulary")
_OF_MATRIX = ("common_tokens", "rows_used", "transformation")
_OF_PART = {
    "reference": _OF_MODEL,
    "candidate": _OF_MODEL,
    "embedding": _OF_MATRIX,
    "unembedding": _OF_MATRIX,
    "layers": ("matches",),
}


def _differences(found: BadgeSource, measured: HomologyReport) -> Iterator[Difference]:
    claim, now = found.claim, claim_of_report(measured)
    if not found.is_faithful:
        shown = "the picture" if found.kind == "badge" else "the text"
        yield Difference("what it shows", shown, f"not what its data gives ({claim.sentence})")
    if claim.verdict is not now.verdict:
        yield Difference("verdict", claim.verdict.value, now.verdict.value)
    if claim.level != now.level:
        return
    if claim.log10_p is not None and now.log10_p is not None:
        # Each comparison draws neurons of its own, so a p that rests on them is not the same to the last digit.
        if not agree(claim.log10_p, now.log10_p, relative=TOLERANCE_OF_SAMPLES):
            yield Difference("log10_p", float(claim.log10_p), float(now.log10_p))
    elif claim.log10_p is not now.log10_p:
        yield Difference("log10_p", claim.log10_p, now.log10_p)
    if found.report is None:
        return
    then: dict[str, Any] = found.report.to_dict()
    today: dict[str, Any] = measured.to_dict()
    for name in ("reason", "tests", "settled_by"):
        if then[name] != today[name]:
            yield Difference(name, then[name], today[name])
    for layers in (then["layers"], today["layers"]):
        if layers is not None:  # the p-value of a pair of layers need not be the same to the last digit
            layers["matches"] = [list(match[:2]) for match in layers["matches"]]
    for part, exact in _OF_PART.items():
        mine, other = then[part], today[part]
        if mine is None or other is None:
            if mine is not other:
                yield Difference(part, *("not run" if one is None else "run" for one in (mine, other)))
            continue
        for name in exact:
            if mine[name] != other[name]:
                yield Difference(f"{part}.{name}", mine[name], other[name])
        if "log10_p" in mine and not agree(mine["log10_p"], other["log10_p"]):
            yield Difference(f"{part}.log10_p", mine["log10_p"], other["log10_p"])


_STATES = {
    "match": "MATCH: computed again from the pinned commits, the result is the same",
    "stale": "STALE: at the pinned commits the result is the same, but a model has changed since",
    "different": "DIFFERENT: computed again from the pinned commits, the result is not what is claimed",
}


def _lines(check: BadgeCheck) -> list[str]:
    claim, now = check.source.claim, claim_of_report(check.report)
    rows = [
        ("claimed", f"{claim.sentence} ({claim.numbers}, mdir-hf {claim.version})"),
        ("measured", f"{now.sentence} ({now.numbers}, level {now.level}, mdir-hf {__version__})"),
    ]
    for model, branch in zip((claim.reference, claim.candidate), check.branches, strict=True):
        read_as = f" ({model.read_as})" if model.read_as else ""
        rows.append(("model", f"{model}{read_as}; {branch}"))
    rows += [("differs", str(difference)) for difference in check.differences]
    if claim.level != now.level:
        text = f"the claim is of level {claim.level}; at level {now.level} only the verdicts can be compared"
        rows.append(("note", text))
    if check.differences and claim.version != __version__:
        rows.append(("note", f"it was computed by mdir-hf {claim.version}, which may compute it in another way"))
    return [_STATES[check.state], "", *(f"  {name:<12} {text}" for name, text in rows)]


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else unquoted(str(value))
