"""The paper's matrix of every pair, and whether "homologous" is an equivalence relation on it.

Sixteen models: the models of the other scripts and some of the lineage zoo (trained if necessary), in four
architectures, in both orders. Reflexive: every model is homologous to itself. Symmetric: both orders give the same
verdict. Transitive: a model homologous to one of two homologous models is also homologous to the other.

python -m benchmarks.paper.pairwise [--tiny]
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.paper.models import BASE, FULL, Scale, built
from benchmarks.paper.output import run
from benchmarks.zoo import build as zoo
from benchmarks.zoo.members import Model
from mdir_hf import HomologyChecker
from mdir_hf.render.figures import draw_survey_matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = {
    BASE: "paper/base",
    "seed2-prose": "paper/base",  # the same initialisation
    "fine-tuned": "paper/base",
    "upscaled": "paper/base",
    "pruned": "paper/base",
    "seed3-code": "paper/other seed",
    "llama": "paper/llama",
}
ZOO = (
    *(("llama", member) for member in ("base", "sft", "width-pruned", "moe-upcycled")),
    *(("gpt2", member) for member in ("base", "continued")),
    *(("qwen3", member) for member in ("base", "retokenised")),
    ("neox", "base"),
)


def pairwise(scale: Scale) -> tuple[dict[str, Any], str, dict[str, Figure]]:
    """Compare every ordered pair."""
    folders: dict[str, Path] = {f"paper/{name}": built(name, scale) for name in OWN}
    lineage = {f"paper/{name}": group for name, group in OWN.items()}
    if scale is FULL:
        folders |= {f"{family}/{member}": zoo.built(Model(family, member), zoo.FULL) for family, member in ZOO}
        lineage |= {f"{family}/{member}": f"zoo/{family}" for family, member in ZOO}
    names = list(folders)
    verdicts: dict[tuple[str, str], str] = {}
    log10_p: dict[tuple[str, str], float] = {}
    for first in names:
        checker = HomologyChecker.from_pretrained(folders[first], use_caches=False)
        for second in names:
            report = checker.compare(folders[second], progress=False)
            verdicts[first, second] = report.verdict.value
            log10_p[first, second] = round(report.log10_p or 0.0, 1)
    related = {pair for pair, verdict in verdicts.items() if verdict == "homologous"}
    breaks = equivalence_breaks(names, related)
    wrong = [
        [first, second, verdicts[first, second]]
        for first, second in product(names, names)
        if ((first, second) in related) != (lineage[first] == lineage[second])
    ]
    data = {
        "models": names,
        "lineage": lineage,
        "verdicts": [[verdicts[first, second] for second in names] for first in names],
        "log10_p": [[log10_p[first, second] for second in names] for first in names],
        "breaks": breaks,
        "against_lineage": wrong,
    }
    groups = [[name for name in names if lineage[name] == group] for group in dict.fromkeys(lineage.values())]
    figure = draw_survey_matrix(
        names,
        [[min(log10_p[first, second], log10_p[second, first]) for second in names] for first in names],
        [[None if first == second else verdicts[first, second] for second in names] for first in names],
        groups=groups,
    )
    return data, section_of(data), {"matrix": figure}


def section_of(data: dict[str, Any]) -> str:
    """Format the results as a section of Markdown."""
    n, breaks, wrong = len(data["models"]), data["breaks"], data["against_lineage"]
    told = "" if not wrong else " (" + "; ".join(f"{a} with {b}: {verdict}" for a, b, verdict in wrong) + ")"
    is_one = "" if not any(breaks.values()) else "not "
    return (
        f"## Every pair (the paper's figure 1)\n\nThere are {n} models and {n * n} ordered pairs, compared at level "
        f"auto. Violations of reflexivity: {len(breaks['reflexive'])}; of symmetry: {len(breaks['symmetric'])}; of "
        f"transitivity: {len(breaks['transitive'])} triples. Verdicts against the lineage: {len(wrong)}{told}.\n\nOn "
        f"these models, `homologous` is {is_one}an equivalence relation. In general it need not be: the parents of a "
        "merge may share no weights.\n\n![Matrix of all pairs](paper-pairwise-matrix.png)\n"
    )


def equivalence_breaks(names: list[str], related: set[tuple[str, str]]) -> dict[str, list[list[str]]]:
    """Return violations of reflexivity, symmetry and transitivity.

    Args:
        names: All elements.
        related: Ordered pairs.

    Returns:
        Lists of names: single names, ordered pairs, and triples (a, b, c) with a ~ b ~ c and not a ~ c.
    """
    return {
        "reflexive": [[name] for name in names if (name, name) not in related],
        "symmetric": [[a, b] for a, b in sorted(related) if (b, a) not in related],
        "transitive": [
            [a, b, c] for a, b, c in product(names, repeat=3) if {(a, b), (b, c)} <= related and (a, c) not in related
        ],
    }


if __name__ == "__main__":
    run("pairwise", pairwise)
