"""Section on framing: strangers prepared to look like relatives, and models with copied rows."""

from __future__ import annotations

from benchmarks.evidence.tables import Results
from benchmarks.runner import Row, table

HEADER = ["victim", "stranger", "method", "change of logits", "verdict", "own numbers", "certain"]


def framing_section(results: Results) -> str:
    """Tabulate framed strangers, then models with copied rows, then mixtures."""
    rows = results["framing"]
    framed = [row for row in rows if not row["related"]]
    copied = [row for row in rows if row["related"] and row["stranger"]]
    soups = [row for row in rows if row["related"] and not row["stranger"]]
    return "\n\n".join(
        [
            "## What framing takes",
            f"{len(rows)} models were prepared to look like relatives of a victim (`python -m "
            "benchmarks framing`); the tiny models come from the zoo. Each was compared ten times, each time with "
            "a fresh sample; the counts of neurons are the largest of all layers and samples.",
            f"### Nothing is copied\n\n{_in_short(framed)}",
            table(HEADER, map(_cells, framed)),
            "### Rows are copied\n\nThese models hold rows of their victim, whatever the rows do. The function of "
            "the first ones is the stranger's, up to the change of the logits; in the others, a share of the neurons "
            "was replaced by copies that work.",
            table(
                [*HEADER[:3], "copied", *HEADER[3:]],
                ([*_cells(row)[:3], row["copied"], *_cells(row)[3:]] for row in copied),
            ),
            "### Soups and shared initialisations\n\nEvery weight of a soup is a mean of weights of a stranger and the "
            "victim. Models that begin with the same deterministic values share them, as models with the same seed do.",
            table(HEADER[2:3] + HEADER[4:], (_cells(row)[2:3] + _cells(row)[4:] for row in soups)),
        ]
    )


def _in_short(rows: list[Row]) -> str:
    """Count the models that are called homologous, with the largest count of certain neurons."""
    accused = [row for row in rows if "homologous" in row["verdicts"]]
    called = f"{len(accused)} of {len(rows)} models {'is' if len(accused) == 1 else 'are'} called `homologous`"
    if not accused:
        called = f"None of the {len(rows)} models is called `homologous`"
    listed = f": {'; '.join(row['done'] for row in accused)}" if accused else ""
    most = max(rows, key=lambda row: float(row["most_certain"]))
    return (
        f"{called}{listed}. The largest count of certain neurons is {most['most_certain']} of {most['tested']} "
        f"({most['done']}); half of them are needed."
    )


def _cells(row: Row) -> list[str]:
    moved = f"{row['logits_moved']:.1g} of {row['largest_logit']:.0f}" if row.get("logits_moved") is not None else ""
    told = row["verdicts"]
    n_runs = sum(told.values())
    verdict = ", ".join(name if n == n_runs else f"{name} ({n})" for name, n in told.items())
    counts = [str(row["most_own"]), f"{row['most_certain']} of {row['tested']}"] if row["tested"] else ["", ""]
    return [row["victim"], row["stranger"] or "", row["done"], moved, verdict, *counts]
