"""Check a report: repeat its comparison on the same sample, and compare every number and the verdict."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mdir_hf.comparison.api import ListenersOptions, ReadingOptions, changed, check_keywords, compare_named, named
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.names import shown_name, unquoted
from mdir_hf.report import HomologyReport, Reason, Verdict
from mdir_hf.report.encoding import differences

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Unpack

TOLERANCE = 1e-4
"""Relative and absolute tolerance for numbers that are not whole. Other processors add up to 10^5 values of float32 in
another order, which changes a sum by about sqrt(10^5) * 6e-8 = 2e-5, and log10 p is quadratic in such sums."""

NOT_COMPARED = ("version", "caveats", "direction", "io", "seconds")
"""Fields that are sentences, or that depend on caches, dates or the clock."""

THE_SAME = "the same verdict and the same numbers"
MOST_SHOWN = 20
"""Maximum number of differing fields in the text; JSON has all."""


class FieldDifference(NamedTuple):
    """A field that differs.

    Attributes:
        field: Path of the field in the report's JSON.
        reported: Its value in the report.
        repeated: Its value now.
    """

    field: str
    reported: Any
    repeated: Any

    def __str__(self) -> str:
        return f"{self.field}: reported {_text(self.reported)}, now {_text(self.repeated)}"


@dataclass(frozen=True, slots=True)
class ReportCheck:
    """The result of :func:`check_report`; ``str(check)`` is the text that the command line prints.

    Attributes:
        differences: The fields that differ, in the order of the report; empty if the report is confirmed.
        other_names: The report's and the present names of local models whose folders have other names. Their files are
            not known to be the same.
    """

    differences: tuple[FieldDifference, ...]
    other_names: tuple[tuple[str, str], ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether the verdict and every number are the same."""
        return not self.differences

    def __str__(self) -> str:
        if self.is_same:
            renamed = (f"{now}, which the report calls {reported}" for reported, now in self.other_names)
            return "; of ".join((THE_SAME, *renamed))
        n_fields = len(self.differences)
        lines = [f"{n_fields} field{' differs' if n_fields == 1 else 's differ'} from the report:"]
        lines += [f"  {difference}" for difference in self.differences[:MOST_SHOWN]]
        return "\n".join([*lines, *([f"  and {n_fields - MOST_SHOWN} more"] if n_fields > MOST_SHOWN else [])])

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain dicts and lists."""
        return {
            "is_same": self.is_same,
            "differences": [difference._asdict() for difference in self.differences],
            "other_names": self.other_names,
        }


class CheckOptions(ReadingOptions, ListenersOptions, total=False):
    """Keyword arguments of :func:`check_report`."""

    device: str
    max_bytes: int | None
    max_memory_bytes: int | None


def check_report(
    report: HomologyReport,
    reference: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    *,
    reading: Reading = Reading(),
    listeners: Listeners = Listeners(),
    **options: Unpack[CheckOptions],
) -> ReportCheck:
    """Compare two models again on the sample of a report, and say whether its verdict and numbers are the same.

    Level, alpha and seeds are taken from the report. A check cannot tell whether the sample was drawn after the models
    were open, as the verdict ``homologous`` requires: compare the models anew for evidence of your own. Caveats, facts
    on direction, bytes, times and versions are not compared.

    Args:
        report: The report to check.
        reference: The reference, as in :func:`mdir_hf.compare`.
        candidate: The candidate.
        reading: Options for opening repositories.
        listeners: Callbacks that receive progress. ``on_found`` is not called.
        options: Any field of :class:`Reading` and :class:`Listeners`; also ``device``, ``max_bytes`` and
            ``max_memory_bytes`` of :class:`Settings`.

    Returns:
        The fields that differ.

    Raises:
        MdirError: If an argument is invalid or the files cannot be read.
    """
    check_keywords(options, CheckOptions)
    listeners = changed(changed(listeners, options), {"on_found": None})
    repeated = compare_named(
        named(reference, {}),
        named(candidate, {}),
        settings=changed(_settings_of(report), options),
        reading=changed(reading, options),
        listeners=listeners,
        repeated_sample_seed=report.sample_seed,
    )
    first, second = _evidence_of(report), _evidence_of(repeated)
    other_names: list[tuple[str, str]] = []
    for side in ("reference", "candidate"):
        if first[side]["commit"] is None and second[side]["commit"] is None:  # a folder may lie elsewhere now
            reported, now = (shown_name(Path(model[side]["repo"]).name) for model in (first, second))
            other_names += [(reported, now)] if reported != now else []
            first[side]["repo"] = second[side]["repo"] = None
    found = (FieldDifference(*each) for each in differences(first, second, tolerance=TOLERANCE))
    return ReportCheck(tuple(found), tuple(other_names))


def _settings_of(report: HomologyReport) -> Settings:
    parts = report.parts or ()
    was_chosen = report.reason is Reason.SAMPLE_CHOSEN or any(p.verdict is Verdict.INCONCLUSIVE for p in parts)
    return Settings(
        level=report.level,
        alpha=report.alpha,
        seed=report.seed,
        sample_seed=report.sample_seed if was_chosen else None,
        describes=bool(report.matrices),
        describes_relatives=report.projections is not None,
    )


def _evidence_of(report: HomologyReport) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(report.to_json())
    for side in ("reference", "candidate"):
        del body[side]["revision"]  # the commit names the files
    return {name: value for name, value in body.items() if name not in NOT_COMPARED}


def _text(value: Any) -> str:  # noqa: ANN401 - parsed JSON
    if isinstance(value, dict | list):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    return "none" if value is None else unquoted(str(value))
