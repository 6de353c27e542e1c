"""Section on framing: strangers prepared to look like relatives, and the share of the victim that this takes."""

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
HEADER = ["victim", "stranger", "method", "change of logits", "auto", "layers", "gate and up", "certain", "down"]


def framing_section(results: Results, figures: dict[str, Figure]) -> str:
    """Tabulate framed strangers by the rows that they copy, then relatives."""
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
            f"{len(rows)} models were prepared to look like relatives of a victim (`python -m "
            "benchmarks.real.framing`). The tiny models come from the zoo. In the first two tables, each model "
            "computes almost the same function as the stranger that it was made from. The tables give the largest "
            "change of a logit in float32, and the largest logit. The files are in BF16, whose rounding changes logits "
            "by a few hundredths.",
            "A rotation is fitted on 128 neurons, and 64 other neurons are tested behind it. The counts are tested "
            "neurons whose best partner has the same number: the largest count of 20 samples of each of up to eight "
            "layers, drawn from the entropy of the system. *Certain* counts neurons that are more alike than any pair "
            f"of random neurons. A layer is a witness if at least {BY_READS} neurons are certain by gate and up, and "
            f"at least {BY_WRITES} agree by down.",
            _tables_in_short(rows),
            f"### Nothing is copied\n\n{_in_short(without_copies)}",
            table(HEADER, map(_cells, without_copies)),
            f"### Copies that do nothing\n\n{_in_short(with_copies)} These files do contain rows of their victim.",
            table([*HEADER[:3], "copied", *HEADER[3:]], map(_cells_with_copies, with_copies)),
            "### Copies that work\n\nThese models contain working parts of their victim, so they are relatives in "
            "part. Either copies replace a share of the neurons of every layer, or the copies were meant to be idle "
            f"but change a logit by more than {WORKING_SHARE:.0%} of the largest.",
            table(HEADER[2:], (_cells(row)[2:] for row in working)),
            "### Soups\n\nThese are relatives: every weight is a mean of weights of a stranger and the victim.",
            table(HEADER[2:3] + HEADER[4:], (_cells(row)[2:3] + _cells(row)[4:] for row in relatives)),
        ]
    )


def _works(row: Row) -> bool:
    """Return whether copies of the victim affect the model's output."""
    moved = row.get("logits_moved") or 0.0
    is_moved = row["copied"] != "nothing" and moved > WORKING_SHARE * row.get("largest_logit", 0.0)
    return row["name"].startswith("replaced-") or is_moved


def _in_short(rows: list[Row]) -> str:
    """Count the models that are called homologous, with the largest counts of agreeing neurons."""
    accused = [row for row in rows if any(row.get(level, {}).get("verdict") == "homologous" for level in LEVELS)]
    by_reads = max(row["counts"]["largest"]["reads_certain"] for row in rows)
    by_writes = max(row["counts"]["largest"]["writes_own"] for row in rows)
    called = (
        f"{len(accused)} of {len(rows)} models {'is' if len(accused) == 1 else 'are'} called `homologous`"
        if accused
        else (f"None of the {len(rows)} models is called `homologous`")
    )
    listed = f": {'; '.join(row['done'] for row in accused)}" if accused else ""
    nearest = (
        f"The largest count of certain neurons by gate and up is {by_reads}, and at most {by_writes} agree by down."
    )
    return f"{called}{listed}. {nearest}"


AGREES = ("rows_agree", "kept", "kept_in_part", "permuted", "rotated_in_heads", "from_layer")
"""Outcomes of projections whose rows agree with the victim's."""

HISTORY = (*AGREES[1:], "replaced")
"""Outcomes that say how a projection came from the victim."""


def _tables_in_short(rows: list[Row]) -> str:
    """Summarise the tables of projections of models that no matching neurons confirm."""
    tables = [row["layers"]["table"] for row in rows if "table" in row.get("layers", {})]
    unconfirmed = [table["outcomes"] for table in tables if not table["is_confirmed"]]
    agreeing = sum(any(outcome in AGREES for outcome in outcomes) for outcomes in unconfirmed)
    told = sum(any(outcome in HISTORY for outcome in outcomes) for outcomes in unconfirmed)
    n_told = "none" if not told else str(told)
    return (
        f"At level `layers`, {len(tables)} models have a table of projections. No matching neurons confirm "
        f"{len(unconfirmed)} of them. In {agreeing} of these, sampled rows of some projections agree with the "
        f"victim's, because they were arranged or copied. Their tables say *rows agree*, and {n_told} of them says "
        "*kept*, *permuted* or *replaced*."
    )


def _cells(row: Row) -> list[str]:
    largest = row["counts"]["largest"]
    moved = f"{row['logits_moved']:.1g} of {row['largest_logit']:.0f}" if row.get("logits_moved") is not None else ""
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
