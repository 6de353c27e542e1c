"""The pages: a short overview, one page per section with all rows, and a list of experiments that were not run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import direction
from benchmarks.evidence.broken import broken_section
from benchmarks.evidence.calibration import calibration_section
from benchmarks.evidence.costs import growth_section
from benchmarks.evidence.figure import draw_evidence
from benchmarks.evidence.forgery import forgery_section
from benchmarks.evidence.framing import framing_section
from benchmarks.evidence.losses import losses_section
from benchmarks.evidence.methods import methods_section
from benchmarks.evidence.peers import peers_section
from benchmarks.evidence.plain import plain_section
from benchmarks.evidence.real import real_peers_section, real_section
from benchmarks.evidence.strangers import strangers_section
from benchmarks.evidence.tables import Results
from benchmarks.evidence.witness import witness_section
from benchmarks.evidence.zoo import zoo_section

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PAGES = "../benchmarks/results/pages"
"""Folder of the tables, as seen from ``docs``. The site shows them under ``evidence/``."""


@dataclass(frozen=True)
class Evidence:
    """Pages by their place as seen from ``docs``, and the figures that they show, by file name."""

    pages: dict[str, str]
    figures: dict[str, Figure]


def make_evidence(results: Results, written: Mapping[str, str]) -> Evidence:
    """Build the pages and their figures; sections without results are left out and listed at the end.

    Args:
        results: Result files by name.
        written: Markdown sections from other scripts, by name.
    """
    figures: dict[str, Figure] = {}
    sections, missing = [], []
    for name, needs, section in SECTIONS:
        if all(need in results for need in needs):
            sections.append(section(results, figures))
        else:
            missing.append(f"- {name}: no `{'`, `'.join(need for need in needs if need not in results)}` in results")
    for name, title in PAPER.items():
        if name in written:
            sections.append(re.sub(r"\]\((paper-[^)]+\.png)\)", r"](../benchmarks/results/\1)", written[name]).strip())
        else:
            missing.append(f"- {title}: no `{name}` in results")
    not_run = "\n".join([*NOT_RUN, *missing])
    pages = {f"{PAGES}/{_slug(section)}.md": _page_of(section) for section in sections}
    more = "\n".join(f"- [{_title(section)}]({place})" for place, section in zip(pages, sections, strict=True))
    picture = []
    if "real-pairs" in results and "real-peers" in results:
        figures["evidence.png"] = drawn = draw_evidence(results["real-pairs"], results["real-peers"])
        picture = [f"![{drawn.get_label()}](images/evidence.png)"]
    front = [
        OPENING,
        *picture,
        *map(_in_short, sections[:1]),
        f"## All tables\n\n{more}",
        f"## What was not run\n\n{not_run}",
    ]
    return Evidence({"evidence.md": "\n\n".join(front) + "\n", **pages}, figures)


def _title(section: str) -> str:
    return section.partition("\n")[0].removeprefix("## ")


def _slug(section: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", _title(section).partition(" (")[0].lower()).strip("-")


def _page_of(section: str) -> str:
    """A section as a page in a folder of its own."""
    lower = re.sub(r"^#(#+ )", r"\1", section, flags=re.M)
    folder = posixpath.normpath(f"docs/{PAGES}")

    def moved(link: re.Match[str]) -> str:
        return f"]({posixpath.relpath(posixpath.normpath(f'docs/{link[1]}'), folder)}"

    return re.sub(r"\]\((?!https?://|#)([^)#\s]+)", moved, lower).strip() + "\n"


def _in_short(section: str) -> str:
    """Return the text before the rows of all pairs, and a summary of the pairs made by third parties."""
    before, head, rows = re.split(r"^(\| reference \| candidate .*\n\|[-| ]+\|\n)", section, maxsplit=1, flags=re.M)
    family = [line for line in rows.splitlines() if "| third party |" in line]
    return (
        f"{before}{_FAMILY}\n\nThe pairs that other people made, all rows are [here]({PAGES}/real-models.md):"
        f"\n\n{head}" + "\n".join(family)
    )


_FAMILY = """Five of these models were trained by different people and are one family. Declared is that MiniLM-L6 is
every second layer of MiniLM-L12, on which the reranker stands. That bge-small and the ColBERT descend from MiniLM-L12,
too, and that paraphrase-L3 has its layers 3, 7 and 11, is declared nowhere in these packages and was measured here. The
ColBERT is nearest to bge-small: see trace over rank."""

OPENING = f"""# Evidence

`python -m benchmarks.evidence` writes this page from `benchmarks/results`. Models, pairs, peers and metrics are
described in `benchmarks/zoo`, `benchmarks/peers`, `benchmarks/metrics.py`, `benchmarks/calibration.py`. Alpha is 1e-10,
fixed before looking, in every decision here.

All pairs of real models, the published methods, [the zoo]({PAGES}/the-zoo.md),
[the second witness on a real model]({PAGES}/the-second-witness-on-a-real-model.md) and
[what framing takes]({PAGES}/what-framing-takes.md) are judged by the rules of the
[second witness](method/verdicts.md#two-witnesses). Five relatives among the pairs of real models are `inconclusive`
since then (bold in the tables). The newest limits, on offsets and on the strengths of layers, are stricter: 501 related
pairs of the zoo, 32 edits and attacks of SmolLM2-135M and the framed models that they concern were compared again; one
verdict was lost and one gained, both in the zoo and at the limit. Other rows are older. The small strangers of one
recipe were judged before there was a second witness, when embeddings alone could decide."""

PAPER = {
    "paper-noise": "The paper's tables of noise",
    "paper-noise-real": "The paper's tables of noise, on real models",
    "paper-changed-tokenizer": "The paper's table of a changed tokenizer",
    "paper-ablation": "The paper's ablation of seed and data",
    "paper-layer-maps": "The paper's layer maps",
    "paper-printed-matrix": "The paper's matrix of 25 models",
    "paper-pairwise": "The paper's matrix of all pairs",
    "paper-matrices": "The paper's pictures of matrices",
}
"""Sections that ``benchmarks.paper`` writes, in the order of the page."""

NOT_RUN = (
    "- Nothing here was run on a model of the Hub: the machine had no network. LeaFBench's own 65 models were "
    "not tried.",
    "- Models of the zoo have 192 channels, the bases two to three million parameters each, trained for a minute. "
    "What long training does to real models is not shown by them.",
    "- One draw of everything: one seed for each kind of descendant and family, so that rates over kinds have no "
    "error bars of their own.",
)


def direction_section(results: Results, figures: dict[str, Figure]) -> str:
    """How often a fact shows which of two relatives came first."""
    del figures
    return direction.section(results["direction"])


SECTIONS: tuple[tuple[str, tuple[str, ...], Callable[[Results, dict[str, Figure]], str]], ...] = (
    (
        "Real models",
        ("real-pairs", "real-models", "real-power", "real-strangers-at-layers", "real-seeds"),
        real_section,
    ),
    ("The second witness on a real model", ("second-witness",), witness_section),
    ("What published methods leave", ("real-methods",), methods_section),
    ("Strangers of one recipe", ("strangers", "strangers-at-scale"), strangers_section),
    ("What evading costs", ("real-forgery", "real-pairs", "real-models"), forgery_section),
    ("What framing takes", ("framing",), framing_section),
    ("MDIR as printed", ("plain-mdir",), plain_section),
    ("Peers on real models", ("real-peers",), real_peers_section),
    ("Cost, by size", ("cost-growth",), growth_section),
    ("The zoo", ("zoo-models", "zoo-pairs"), zoo_section),
    ("Others on the same pairs", ("zoo-pairs", "zoo-peers"), peers_section),
    ("Where we lose", ("zoo-pairs", "zoo-peers"), losses_section),
    ("Facts that show a direction", ("direction",), direction_section),
    ("Calibration", ("calibration-models", "calibration-pairs", "calibration-haar"), calibration_section),
    ("Broken on purpose", ("mutants",), broken_section),
)
"""Name, result files and the script that writes them, in the order of the page."""
