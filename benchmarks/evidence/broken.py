"""Section on code that was broken on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.evidence.tables import Results, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def broken_section(results: Results, figures: dict[str, Figure]) -> str:
    """Tabulate the breaks of each module that the quick tests noticed."""
    rows = [
        [
            f"`{row['module']}`",
            f"{row['noticed']} of {row['tried']}",
            str(len(row["survived"])),
            str(len(row["no_test"])),
        ]
        for row in results["mutants"]
    ]
    return "\n\n".join(
        [
            "## Broken on purpose",
            "Each module was broken in one place at a time: a comparison, number, sign, condition, call or error was "
            "changed. The table shows how many of these breaks the module's quick tests noticed (`make mutants`). "
            "`benchmarks/results/mutants.jsonl` lists every break that survived; docs/LOG.md describes the kinds.",
            table(["module", "noticed", "survived", "in lines that these tests never run"], rows),
        ]
    )
