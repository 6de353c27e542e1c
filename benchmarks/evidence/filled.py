"""Fill the measured numbers in README.md and the docs: the text between ``<!--=NAME-->`` and ``<!--/-->``."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.evidence.peers import beside_the_paper
from benchmarks.evidence.plain import is_found, is_ours
from benchmarks.evidence.tables import Results
from benchmarks.runner import Row, table

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"<!--=([\w.-]+)-->(.*?)<!--/-->", re.DOTALL)

QUANTITY = re.compile(
    r"(?<![\w.^/-])\d[\d,]*(?:\.\d+)?\s?(?:MB|GB|kB|ms|s\b|seconds|minutes|hours?)"
    r"|(?<![\w.^/-])\d[\d,]* of (?:the )?\d+(?:,\d{3})*"
)
"""Sizes, times and counts out of a number, as measurements are written."""

NOT_MEASURED = {
    "README.md": ("2 GB", "2 minutes", "6 minutes"),
    "docs/attacks.md": ("64 kB", "30 s", "20 s", "14 of 64", "32 of 64"),
    "docs/guides/atlas.md": ("5 MB",),
    "docs/guides/bill-of-materials.md": ("16 MB",),
    "docs/guides/find-a-base.md": ("400 kB",),
    "docs/guides/index.md": ("300 seconds", "5 GB"),
    "docs/guides/space.md": ("1.3 MB", "400 kB"),
    "docs/guides/survey.md": ("16 MB",),
    "docs/method/layers.md": ("2 of 3", "3.4445 s", "4.7750 s", "2.0315 s"),
    "docs/method/verdicts.md": ("32 of 64",),
    "docs/moment-bound.md": ("1,218 of 1,218", "3,857 of 3,857"),
}
"""Limits of the program, sizes of downloads, examples, and exact counts (``python -m benchmarks moment-bound``)."""


def pages() -> list[Path]:
    """Return the pages whose numbers are filled in."""
    made = {"evidence.md", "LOG.md"}
    return [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name not in made)]


def fill(text: str, values: dict[str, str]) -> str:
    """Replace the text of each mark with the value of its name.

    Raises:
        KeyError: If there is no such value.
    """
    return MARK.sub(lambda mark: f"<!--={mark[1]}-->{values[mark[1]]}<!--/-->", text)


def typed_by_hand(path: Path, text: str) -> Iterator[str]:
    """Yield the quantities of a page that are neither filled in nor known as limits, examples or sizes."""
    known = set(NOT_MEASURED.get(str(path.relative_to(ROOT)), ()))
    prose = re.sub(r"```.*?```|`[^`]*`", "", MARK.sub("", text), flags=re.DOTALL)
    yield from (match[0] for match in QUANTITY.finditer(prose) if match[0] not in known)


def measured_values(results: Results) -> dict[str, str]:
    """Return every value that the pages may name."""
    values = {}
    for name, rows in (
        ("real", results["real-pairs"]),
        ("zoo", [row for row in results["zoo-pairs"] if row["level"] == "auto"]),
    ):
        related = [row for row in rows if row["related"]]
        values[f"{name}.related"] = str(len(related))
        values[f"{name}.found"] = str(sum(row["verdict"] == "homologous" for row in related))
        values[f"{name}.strangers"] = str(len(rows) - len(related))
    noise = [row for row in results["power"] if row["kind"] == "noise"]
    values["power.missed-noise"] = f"{min(row['amount'] for row in noise if not row['found']):g}"
    values["peers.beside-the-paper"] = f"\n\n{beside_the_paper(results)}\n\n"
    values |= _of_alignment(results["real-alignment"])
    return values | _of_plain(results["plain-mdir"]) | _of_surveys(results) | _of_visitors(results["space-visitors"])


def _of_plain(rows: list[Row]) -> dict[str, str]:
    values = {}
    for group in ("zoo", "real", "framed"):
        of_group = [row for row in rows if row["group"] == group]
        related = [row for row in of_group if row["related"]]
        strangers = [row for row in of_group if not row["related"]]
        values |= {
            f"plain.{group}.related": str(len(related)),
            f"plain.{group}.found": str(sum(map(is_found, related))),
            f"plain.{group}.ours": str(sum(map(is_ours, related))),
            f"plain.{group}.strangers": str(len(strangers)),
            f"plain.{group}.accused": str(sum(map(is_found, strangers))),
        }
    real = [row for row in rows if row["group"] == "real" and "auto" in row["ours"]]
    ours = [row["ours"]["auto"]["bytes_read"] for row in real]
    values["plain.real.bytes"] = f"{statistics.median(row['bytes_of_weights'] for row in real) / 1e6:,.0f} MB"
    values["plain.real.ours-bytes"] = f"{statistics.median(ours) / 1e6:,.0f} MB"
    return values


def _of_alignment(rows: list[Row]) -> dict[str, str]:
    hidden = next(row for row in rows if row["copy"] == "hidden")
    return {
        "align.layers": "{} of {} layers".format(*hidden["layers"]),
        "align.residuals": f"{hidden['residual_of_embeddings']:.2g}, {hidden['worst_residual']:.2g}",
        "align.explained": "{:.3f} to {:.6f}".format(*hidden["explained"]),
        "align.logits": f"{hidden['logits_of_aligned']:.2%}",
        "align.logits-of-copy": f"{hidden['logits_of_copy']:.2%}",
        "align.seconds": f"{hidden['cpu_s']:.0f} s",
    }


def _of_surveys(results: Results) -> dict[str, str]:
    prices = [
        [
            f"{row['models']:,}",
            f"{row['pairs']:,}",
            f"{row['by_number']:,}",
            f"{row['in_full']:,}",
            "yes" if row["groups_as_made"] else "**no**",
            f"{row['cpu_s']:g} s",
        ]
        for row in results["survey-scale"]
    ]
    hidden = [
        [row["disguise"], *(f"{row[who]} of {row['copies']}" for who in ("survey", "all_pairs", "compare"))]
        for row in results["survey-disguises"]
    ]
    return {
        "survey.prices": "\n\n"
        + table("models | pairs | compared by number | in full | groups right | processor", prices)
        + "\n\n",
        "survey.disguises": "\n\n" + table("disguise | survey | all pairs | compare", hidden) + "\n\n",
    }


def _of_visitors(rows: list[Row]) -> dict[str, str]:
    first = min(rows, key=lambda row: row["n_rounds"])["rounds"][0]
    page, cached, patient = (first[name]["seconds"] for name in ("page", "cached, page", "patient"))
    after = max(rows, key=lambda row: row["n_rounds"])["memory after the last round, of that before"]
    return {
        "space.page": f"{page[0]:.2g} s",
        "space.cached": f"{cached[0]:.2g} s",
        "space.new": f"{patient[0]:.1f} s",
        "space.memory": f"{100 * after:.0f} %",
    }


def fill_pages(results: Results) -> None:
    """Fill in the numbers of all pages."""
    values = measured_values(results)
    for path in pages():
        text = path.read_text(encoding="utf-8")
        path.write_text(fill(text, values), encoding="utf-8")
