"""Evidence pages: a short overview, one page per section with all rows, and a list of experiments that were not run."""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.evidence.costs import growth_section
from benchmarks.evidence.figure import draw_evidence
from benchmarks.evidence.filled import fill_pages
from benchmarks.evidence.forgery import forgery_section
from benchmarks.evidence.framing import framing_section
from benchmarks.evidence.front import NEEDS, draw_framing, front_sections
from benchmarks.evidence.losses import losses_section
from benchmarks.evidence.methods import methods_section
from benchmarks.evidence.numbers import numbers_section
from benchmarks.evidence.peers import peers_section
from benchmarks.evidence.plain import plain_section
from benchmarks.evidence.power import draw_power, power_section
from benchmarks.evidence.real import real_peers_section, real_section
from benchmarks.evidence.reliability import reliability_section
from benchmarks.evidence.tables import Results, read_results
from benchmarks.evidence.zoo import draw_zoo, zoo_section
from benchmarks.paper import ablation, changed_tokenizer, layer_maps, matrices, noise_real, printed_matrix
from benchmarks.runner import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DOCS = Path(__file__).parents[2] / "docs"
Section = Callable[[Results], str]

PAGES = "../benchmarks/results/pages"
"""Folder of the tables, relative to ``docs``. The site shows them under ``evidence/``."""


@dataclass(frozen=True)
class Evidence:
    """Pages by their path relative to ``docs``, and their figures by file name."""

    pages: dict[str, str]
    figures: dict[str, Figure]


def make_evidence(results: Results) -> Evidence:
    """Build the pages and their figures; sections without results are left out and listed at the end.

    Args:
        results: Result files by name.
    """
    sections, missing = [], []
    for name, needs, section in SECTIONS:
        if all(need in results for need in needs):
            sections.append(section(results))
        else:
            missing.append(f"- {name}: no `{'`, `'.join(need for need in needs if need not in results)}` in results")
    not_run = "\n".join([*NOT_RUN, *missing])
    pages = {f"{PAGES}/{_slug(section)}.md": _page_of(section) for section in sections}
    more = "\n".join(f"- [{_title(section)}]({place})" for place, section in zip(pages, sections, strict=True))
    figures = {name: draw(results) for name, needs, draw in FIGURES if all(need in results for need in needs)}
    front = [
        OPENING,
        *(front_sections(results, PAGES) if all(need in results for need in NEEDS) else ()),
        f"## All tables\n\n{more}",
        f"## What was not run\n\n{not_run}",
    ]
    return Evidence({"evidence.md": "\n\n".join(front) + "\n", **pages}, figures)


def _title(section: str) -> str:
    return section.partition("\n")[0].removeprefix("## ")


def _slug(section: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", _title(section).partition(" (")[0].lower()).strip("-")


def _page_of(section: str) -> str:
    """Turn a section into a page in the folder of tables: raise headings and adjust relative links."""
    lower = re.sub(r"^#(#+ )", r"\1", section, flags=re.M)
    folder = posixpath.normpath(f"docs/{PAGES}")

    def moved(link: re.Match[str]) -> str:
        return f"]({posixpath.relpath(posixpath.normpath(f'docs/{link[1]}'), folder)}"

    return re.sub(r"\]\((?!https?://|#)([^)#\s]+)", moved, lower).strip() + "\n"


OPENING = """# Evidence

`python -m benchmarks evidence` writes this page from `benchmarks/results`. Models, pairs, peers and metrics are
described in `benchmarks/zoo`, `benchmarks/peers` and `benchmarks/metrics.py`. Every decision uses alpha 1e-10, which
was fixed in advance. [The limit](method/verdicts.md#when-two-layers-match) has the largest counts of neurons that
strangers and framed models reach."""

NOT_RUN = (
    "- No model was read from the Hub, because the machine had no network. LeaFBench's own 65 models were not tried.",
    "- Models of the zoo have 192 channels, and their bases two to three million parameters, trained for a minute. "
    "They do not show the effects of long training on real models.",
    "- Each kind of descendant was drawn once per family, with one seed, so rates over kinds have no error bars.",
)


def _section_of_experiment(name: str, section_of: Callable[[Row], str]) -> Section:
    """Return the section of an experiment, whose numbers are one line."""

    def section(results: Results) -> str:
        (line,) = results[name]
        return section_of({field: value for field, value in line.items() if field != "experiment"})

    return section


SECTIONS: tuple[tuple[str, tuple[str, ...], Section], ...] = (
    (
        "Real models",
        ("real-pairs", "real-models"),
        real_section,
    ),
    ("Which relatives are found", ("power",), power_section),
    ("What published methods leave", ("real-methods",), methods_section),
    ("What evading costs", ("real-forgery", "real-pairs", "real-models"), forgery_section),
    ("What framing takes", ("framing",), framing_section),
    ("MDIR as printed", ("plain-mdir",), plain_section),
    ("Peers on real models", ("real-peers",), real_peers_section),
    ("Cost, by size", ("cost-growth",), growth_section),
    ("The zoo", ("zoo-models", "zoo-pairs"), zoo_section),
    ("Others on the same pairs", ("zoo-pairs", "zoo-peers"), peers_section),
    ("Where we lose", ("zoo-pairs", "zoo-peers"), losses_section),
    ("The tail of p", ("neuron-null",), numbers_section),
    ("Reliability", ("reliability",), reliability_section),
    (
        "The paper's tables of noise",
        ("paper-noise-real",),
        lambda results: noise_real.section_of(results["paper-noise-real"]),
    ),
    *(
        (title, (f"paper-{name}",), _section_of_experiment(f"paper-{name}", section_of))
        for title, name, section_of in (
            ("The paper's table of a changed tokenizer", "changed-tokenizer", changed_tokenizer.section_of),
            ("The paper's ablation of seed and data", "ablation", ablation.section_of),
            ("The paper's layer maps", "layer-maps", layer_maps.section_of),
            ("The paper's matrix of 25 models", "printed-matrix", printed_matrix.section_of),
            ("The paper's pictures of matrices", "matrices", matrices.section_of),
        )
    ),
)
"""Name, required result files and function of each section, in page order."""

FIGURES: tuple[tuple[str, tuple[str, ...], Callable[[Results], Figure]], ...] = (
    ("evidence.png", ("real-pairs", "real-peers"), draw_evidence),
    ("evidence-framing.png", ("framing",), draw_framing),
    ("evidence-power.png", ("power",), draw_power),
    ("evidence-zoo.png", ("zoo-pairs",), draw_zoo),
)
"""File, required result files and function of each figure."""


def write_evidence() -> None:
    """Write the pages and their figures."""
    results = read_results()
    evidence = make_evidence(results)
    fill_pages(results)
    (DOCS / PAGES).mkdir(exist_ok=True)
    for place, text in evidence.pages.items():
        (DOCS / place).write_text(text, encoding="utf-8")
    for name, figure in evidence.figures.items():
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=110, metadata={"Software": None})
        (DOCS / "images" / name).write_bytes(data.getvalue())
    print(f"docs/evidence.md, {len(evidence.pages) - 1} pages with all rows, {len(evidence.figures)} figures")
