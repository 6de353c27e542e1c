"""``mdir-hf verify-badge``: compute a claim again from the commits it names, and say whether it holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mdir_hf._version import __version__
from mdir_hf.cards.badge_source import BadgeSource, read_badge
from mdir_hf.cards.claim import A_FOLDER, PinnedModel, claim_of_report
from mdir_hf.cards.heads import Head, head_of, hub_reference
from mdir_hf.checker import HomologyChecker
from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.errors import InputError
from mdir_hf.report import HomologyReport

SCHEMA = "mdir-hf/badge-check/1"

LEAST_TOLERANCE, RELATIVE_TOLERANCE = 0.5, 1e-5
"""Two values of log10 p agree within the larger of half a decade and a hundred-thousandth; see :func:`agree`."""


@dataclass(frozen=True, slots=True)
class ReadAs:
    """How a model of a badge was read, where its repository alone and the badge do not say.

    Those made before 22 November 2026 do not say it. What is given here goes before what they say.

    Attributes:
        subfolder: Folder of the repository that holds the model.
        variant: As in :meth:`HomologyChecker.compare`.
        file: The one weight file, such as a GGUF, of several.
        tokenizer: Repository or folder of its vocabulary.
    """

    subfolder: str = ""
    variant: str | None = None
    file: str | None = None
    tokenizer: str | None = None


_AS_IT_IS = ReadAs()


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as claimed.

    Attributes:
        name: What.
        claimed: As the badge or report has it.
        measured: As it is now.
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
    """What became of a claim.

    Attributes:
        state: ``match``; ``stale``: it holds at the commits it names, and a model has changed since; ``different``.
        source: The claim and where it was found.
        differences: What is not as claimed.
        heads: Where the two repositories stand.
        report: The comparison, done again.
    """

    state: str
    source: BadgeSource
    differences: tuple[Difference, ...]
    heads: tuple[Head, ...]
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
            "differences": [
                {"name": one.name, "claimed": one.claimed, "measured": one.measured} for one in self.differences
            ],
            "heads": [
                {"repo": one.repo, "pinned": one.pinned, "head": one.head, "changed": list(one.changed)}
                for one in self.heads
            ],
            "report": self.report.to_dict(),
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def verify_badge(
    source: str | os.PathLike[str],
    *,
    level: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    reference_as: ReadAs = _AS_IT_IS,
    candidate_as: ReadAs = _AS_IT_IS,
    device: str = "cpu",
    max_bytes: int | None = None,
    progress: bool = True,
    on_plan: Callable[[ReadPlan], None] | None = None,
) -> BadgeCheck:
    """Compare the two models of a badge again, at the commits it names, with its seed, alpha and level.

    Args:
        source: See :func:`~mdir_hf.cards.badge_source.read_badge`.
        level: Another level than the badge's; then only the verdicts are held against each other.
        token: As the Hub client takes it.
        cache_dir: The Hub's cache.
        reference_as: How the reference was read.
        candidate_as: How the candidate was read.
        device: torch device for the matrix products.
        max_bytes: Most bytes that the comparison may read.
        progress: Whether to draw a bar where standard error is a terminal.
        on_plan: Called with the plan of the comparison.

    Returns:
        What became of the claim.

    Raises:
        InputError: If there is no claim, or one about a model that is not on the Hub.
        HubError: If a repository or a pinned commit cannot be had any more.

    Cost: the comparison, and one API request per repository.
    """
    found = read_badge(source, token=token, cache_dir=cache_dir)
    claim = found.claim
    sides = (claim.reference, claim.candidate)
    if any(model.repo is None for model in sides):
        raise InputError(
            "one of its models was a local folder, so nobody else can compute it again; compare two models on the Hub",
            subject=found.name,
        )
    reference, candidate = (
        _opened_as(model, told, found.name) for model, told in zip(sides, (reference_as, candidate_as), strict=True)
    )
    checker = HomologyChecker.from_pretrained(
        **reference,
        token=token,
        cache_dir=cache_dir,
        device=device,
        alpha=claim.alpha,
        seed=claim.seed,
    )
    report = checker.compare(
        **candidate,
        level=level or claim.level,
        max_bytes=max_bytes,
        progress=progress,
        on_plan=on_plan,
    )
    differences = tuple(_differences(found, report))
    heads = tuple(head_of(model, token=token, cache_dir=cache_dir) for model in sides)
    is_stale = any(head.changed for head in heads)
    state = "different" if differences else "stale" if is_stale else "match"
    return BadgeCheck(state, found, differences, heads, report)


def _opened_as(model: PinnedModel, told: ReadAs, source: str) -> dict[str, Any]:
    """How to open a model of a claim; what a stranger's claim names can only be on the Hub."""
    tokenizer = told.tokenizer
    if tokenizer is None and model.tokenizer == A_FOLDER:
        raise InputError(
            f"the vocabulary of {model.repo} was read from a local folder; name one with --reference-tokenizer or "
            "--candidate-tokenizer",
            subject=source,
        )
    if tokenizer is None and model.tokenizer is not None:
        tokenizer = f"hf://models/{model.tokenizer}"
    return {
        "repo_or_folder": hub_reference(model.repo or "", model.commit, told.file or model.file),
        "subfolder": told.subfolder or model.subfolder or "",
        "variant": told.variant or model.variant,
        "tokenizer": tokenizer,
        "bases": model.bases or (),
    }


def agree(claimed: float, measured: float) -> bool:
    """Tell whether two values of log10 p are the same but for arithmetic.

    Seed, rows and formula are the same, so what is left is rounding: other orders of summation on other processors and
    numbers of threads. Measured (docs/LOG.md, 2026-11-21), that changes log10 p by less than 1e-15 of it in float64
    and by about 1e-7 in float32; a hundred times that is allowed. p can be the small difference of two large terms,
    ln n! and half the squared trace, so the same share of those (6e4 decades each at n = 16384) is allowed in any case.
    """
    return abs(claimed - measured) <= max(LEAST_TOLERANCE, RELATIVE_TOLERANCE * abs(claimed))


def _differences(found: BadgeSource, measured: HomologyReport) -> Iterator[Difference]:
    claim, now = found.claim, claim_of_report(measured)
    if not found.is_faithful:
        shown = "the picture" if found.kind == "badge" else "the text"
        yield Difference("what it shows", shown, f"not what its data gives ({claim.sentence})")
    if claim.verdict is not now.verdict:
        yield Difference("verdict", claim.verdict.value, now.verdict.value)
    if claim.level != now.level:
        return
    if not agree(claim.log10_p, now.log10_p):
        yield Difference("log10_p", float(claim.log10_p), float(now.log10_p))
    if found.report is not None:
        yield from _report_differences(found.report.to_dict(), measured.to_dict())


# What a report says beyond its claim, and what has to be the same in both; log10 p within the tolerance.
_EXACT = ("reason", "tests", "settled_by")
_EXACT_OF_MODEL = ("architecture", "hidden_size", "layers", "vocabulary")
_EXACT_OF_MATRIX = ("common_tokens", "rows_used", "transformation")


def _report_differences(claimed: dict[str, Any], measured: dict[str, Any]) -> Iterator[Difference]:
    for name in _EXACT:
        if claimed[name] != measured[name]:
            yield Difference(name, claimed[name], measured[name])
    for side in ("reference", "candidate"):
        yield from _part(side, claimed[side], measured[side], _EXACT_OF_MODEL)
    for part in ("embedding", "unembedding"):
        yield from _part(part, claimed[part], measured[part], _EXACT_OF_MATRIX)
    yield from _part("layers", _layers(claimed["layers"]), _layers(measured["layers"]), ("matches",))


def _part(
    part: str, claimed: dict[str, Any] | None, measured: dict[str, Any] | None, exact: tuple[str, ...]
) -> Iterator[Difference]:
    if claimed is None or measured is None:
        if claimed is not measured:
            words = ["not run" if one is None else "run" for one in (claimed, measured)]
            yield Difference(part, *words)
        return
    for name in exact:
        if claimed.get(name) != measured.get(name):
            yield Difference(f"{part}.{name}", claimed.get(name), measured.get(name))
    mine, other = claimed.get("log10_p", 0.0), measured.get("log10_p", 0.0)
    if not isinstance(mine, (int, float)) or not agree(mine, other):
        yield Difference(f"{part}.log10_p", mine, other)


def _layers(layers: Any) -> dict[str, Any] | None:  # noqa: ANN401 - parsed JSON
    """The layer map, with its pairs alone for a comparison to the letter."""
    if not isinstance(layers, dict):
        return None
    matches = layers.get("matches")
    pairs = [list(match[:2]) for match in matches] if isinstance(matches, list) else matches
    return {"matches": pairs, "log10_p": layers.get("log10_p", 0.0)}


_STATES = {
    "match": "MATCH: computed again from the pinned commits, the result is the same",
    "stale": "STALE: the result holds at the pinned commits, and a model has changed since",
    "different": "DIFFERENT: computed again from the pinned commits, the result is not what is claimed",
}


def _lines(check: BadgeCheck) -> list[str]:
    claim, report = check.source.claim, check.report
    lines = [_STATES[check.state], ""]

    def row(name: str, text: str) -> None:
        lines.append(f"  {name:<12} {text}")

    row("claimed", f"{claim.sentence} (log10 p {claim.log10_p:.1f}, alpha {claim.alpha:g}, mdir-hf {claim.version})")
    now = claim_of_report(report)
    row("measured", f"{now.sentence} (log10 p {now.log10_p:.1f}, level {now.level}, mdir-hf {__version__})")
    for model, head in zip((claim.reference, claim.candidate), check.heads, strict=True):
        read_as = f" ({model.read_as})" if model.read_as else ""
        row("model", f"{model}{read_as}; {head}")
    for difference in check.differences:
        row("differs", str(difference))
    if claim.level != now.level:
        row("note", f"the claim is of level {claim.level}; at level {now.level} only the verdicts can be compared")
    if check.differences and claim.version != __version__:
        row("note", f"it was computed by mdir-hf {claim.version}, whose rules may have been others")
    return lines


def _shown(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else ascii(value)
    text = text[1:-1] if isinstance(value, str) else text
    return text if len(text) <= 200 else f"{text[:197]}..."
