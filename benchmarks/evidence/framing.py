"""The section on framing: unrelated models prepared to look related, and the share of the victim that this takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.evidence.tables import Results, Row, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY_READS, BY_WRITES = 48, 32
"""Neurons of 64 that must be certain by gate and up, and neurons that must agree by down."""

WORKING_SHARE = 0.05
"""Copies work if they move a logit by more than this share of the largest logit. Rounding to BF16 moves it by 0.3%."""

LEVELS = ("auto", "layers")
HEADER = ["victim", "stranger", "what was done", "logits moved", "auto", "layers", "gate and up", "certain", "down"]


def framing_section(results: Results, figures: dict[str, Figure]) -> str:
    """Tables of framed strangers by the rows that they copy, then of relatives."""
    del figures
    rows = results["framing"]
    strangers = [row for row in rows if not row["related"]]
    without_copies = [row for row in strangers if row["copied"] == "nothing"]
    with_copies = [row for row in strangers if row["copied"] != "nothing" and not _works(row)]
    working = [row for row in strangers if _works(row)]
    relatives = [row for row in rows if row["related"]]
    return "\n\n".join(
        [
            "## What framing takes",
            f"{len(rows)} models that were prepared to look like relatives of a victim "
            "(`python -m benchmarks.real.framing`). Tiny models come from the zoo. Each model computes the same as "
            "the stranger that it was made from: the tables give the largest change of a logit in float32, and the "
            "largest logit. The files hold BF16, whose rounding moves logits by a few hundredths.",
            f"Counts are neurons of {64} that have their own partner behind a rotation that was fitted on 128 other "
            "neurons: the largest of 20 samples of each of up to eight layers, drawn from the entropy of the system. "
            f"*Certain* counts those that no pair of random neurons resembles as much. A layer is a witness if at "
            f"least {BY_READS} neurons are certain by gate and up, and at least {BY_WRITES} agree by down.",
            _tables_in_short(rows),
            f"### Nothing is copied\n\n{_in_short(without_copies)}",
            table(HEADER, map(_cells, without_copies)),
            f"### Copies that do nothing\n\n{_in_short(with_copies)} These files do contain rows of their victim.",
            table([*HEADER[:3], "copied", *HEADER[3:]], map(_cells_with_copies, with_copies)),
            "### Copies that work\n\nThese models contain working parts of their victim, so they are partly relatives: "
            "copies replace a share of the neurons of every layer, or they were meant to do nothing and still move a "
            f"logit by more than {WORKING_SHARE:.0%} of the largest.",
            table(HEADER[2:], (_cells(row)[2:] for row in working)),
            "### Soups\n\nThese are relatives: every weight is a mean of a stranger's and the victim's.",
            table(HEADER[2:3] + HEADER[4:], (_cells(row)[2:3] + _cells(row)[4:] for row in relatives)),
        ]
    )


def _works(row: Row) -> bool:
    """Return whether copies of the victim affect the model's output."""
    moved = row.get("logits_moved") or 0.0
    is_moved = row["copied"] != "nothing" and moved > WORKING_SHARE * row.get("largest_logit", 0.0)
    return row["name"].startswith("replaced-") or is_moved


def _in_short(rows: list[Row]) -> str:
    """State how many of some models are called homologous, and how near the nearest one comes."""
    accused = [row for row in rows if any(row.get(level, {}).get("verdict") == "homologous" for level in LEVELS)]
    by_reads = max(row["counts"]["largest"]["reads_certain"] for row in rows)
    by_writes = max(row["counts"]["largest"]["writes_own"] for row in rows)
    called = (
        f"{len(accused)} of {len(rows)} models are called `homologous`"
        if accused
        else (f"None of {len(rows)} models is called `homologous`")
    )
    listed = f": {'; '.join(row['done'] for row in accused)}" if accused else ""
    nearest = (
        f"The largest count of certain neurons by gate and up is {by_reads}, and by down {by_writes} agree at most."
    )
    return f"{called}{listed}. {nearest}"


AGREES = ("rows_agree", "kept", "kept_in_part", "permuted", "rotated_in_heads", "from_layer")
"""Outcomes of projections whose rows agree with the victim's."""

HISTORY = (*AGREES[1:], "replaced")
"""Outcomes that say how a projection came from the victim."""


def _tables_in_short(rows: list[Row]) -> str:
    """State what the tables of projections say of models that the second witness does not confirm."""
    tables = [row["layers"]["table"] for row in rows if "table" in row.get("layers", {})]
    unconfirmed = [table["outcomes"] for table in tables if not table["is_confirmed"]]
    agreeing = sum(any(outcome in AGREES for outcome in outcomes) for outcomes in unconfirmed)
    told = sum(any(outcome in HISTORY for outcome in outcomes) for outcomes in unconfirmed)
    n_told = "none" if not told else str(told)
    return (
        f"At level `layers` {len(tables)} models have a table of projections. The second witness does not confirm "
        f"{len(unconfirmed)} of them. In {agreeing} of these, sampled rows of some projections agree with the "
        "victim's, because they were arranged or copied. Their tables say *rows agree*, and "
        f"{n_told} of them says *kept*, *permuted* or *replaced*."
    )


def _cells(row: Row) -> list[str]:
    largest = row["counts"]["largest"]
    moved = f"{row['logits_moved']:.0e} of {row['largest_logit']:.0f}" if row.get("logits_moved") is not None else ""
    verdicts = [_verdict(row[level]) if level in row else "not run" for level in LEVELS]
    counts = [str(largest[key]) for key in ("reads_own", "reads_certain", "writes_own")]
    return [row["victim"], row["stranger"] or "", row["done"], moved, *verdicts, *counts]


def _cells_with_copies(row: Row) -> list[str]:
    cells = _cells(row)
    return [*cells[:3], row["copied"], *cells[3:]]


def _verdict(outcome: Row) -> str:
    if outcome["verdict"] == "homologous":
        return "**homologous**" if outcome["log10_p"] is None else f"**homologous**, {outcome['log10_p']:,.0f}"
    return f"{outcome['verdict']} ({outcome['reason']})" if outcome.get("reason") else str(outcome["verdict"])
