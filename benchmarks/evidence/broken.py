"""The section on lines that were broken on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.evidence.tables import Results, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def broken_section(results: Results, figures: dict[str, Figure]) -> str:
    """How many breaks of each module the quick tests noticed."""
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
            "One comparison, number, sign, condition, call or error of a module changed at a time: how many of these "
            "breaks the quick tests named for the module notice (`make mutants`). Each one that survives stands in "
            "`benchmarks/results/mutants.jsonl`; docs/LOG.md says which kinds they are.",
            table(["module", "noticed", "survived", "in lines that those tests never enter"], rows),
        ]
    )
