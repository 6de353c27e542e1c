"""Section on reliability: damaged inputs, stopped programs, full disks, and the wrong answers that they caused."""

from __future__ import annotations

from benchmarks.evidence.tables import Results
from benchmarks.runner import table

WRONG = """A wrong answer is a verdict or a p that an undisturbed run would not give, a file that is
neither the old one nor the new one, an exception that is not ours, or a hang."""


def reliability_section(results: Results) -> str:
    """Tabulate damaged inputs and stopped programs, and visitors of a Space."""
    rows = [
        [
            row["what"],
            f"{row['tried']:,}",
            ", ".join(f"{outcome}: {n:,}" for outcome, n in row.get("outcomes", {}).items() if outcome != "wrong"),
            str(row["wrong"]),
            f"`{row['command']}`",
        ]
        for row in results["reliability"]
    ]
    return "\n\n".join(
        [
            "## Reliability",
            WRONG,
            table(["what was done", "times", "outcomes", "wrong answers", "command"], rows),
            "[Sixty visitors at once](guides/space.md#visitors) were measured on a Space.",
        ]
    )
