"""Count the facts of direction on pairs with a known history, and check which way they point.

    python -m benchmarks.direction --demo FOLDER --zoo --real FOLDER --methods FOLDER    # compare

Results are stored in ``benchmarks/results/direction.json``, one entry for each pair; each option renews the pairs of
its group. ``--demo`` is the folder that ``mdir-hf demo`` built, ``--real`` the folder of one real model with its edits,
as ``benchmarks.real`` builds them. ``--methods`` is the folder of results of published methods on SmolLM2-135M; missing
results are built.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.real.bases import base_folder, load
from benchmarks.real.methods import methods, write
from benchmarks.real.workshop import SMALL, Model, built
from benchmarks.zoo.build import FULL, folder_of_model
from benchmarks.zoo.members import FAMILIES, MEMBERS, initialisations, models
from mdir_hf import HomologyReport, compare
from mdir_hf.report import DirectionFact, fact_side

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "direction.json"

Parents = Mapping[str, tuple[str, ...]]

DEMO: Parents = {
    "base": (),
    "fine-tune": ("base",),
    "permuted": ("fine-tune",),
    "rotated": ("fine-tune",),
    "pruned": ("base",),
    "other-tokenizer": ("base",),
    "other-seed": (),
    "other-width": (),
}
OF_TWO = ("dare-90", "negated")
"""Methods that take a model and a fine-tune of it."""

ROUNDINGS = ("int2", "ternary", "quarot-4bit")

GROUPS = {
    "demo": "Demo",
    "zoo": "Zoo",
    "real": "Edits of SmolLM2-135M",
    "methods": "Published methods on SmolLM2-135M",
}
FACTS = {
    "rounded": "values rounded to fewer bits",
    "repeated_layers": "layers that occur twice in one model",
    "new_tokens": "rows of new tokens at the mean",
    "adapter": "an adapter on the other model",
}


def ancestors(name: str, parents: Parents) -> frozenset[str]:
    """Return every model that a model was made from, directly or indirectly."""
    return frozenset(parents[name]).union(*(ancestors(parent, parents) for parent in parents[name]))


def judged(
    group: str,
    folders: Mapping[str, Path],
    parents: Parents,
    is_related: Callable[[str, str], bool],
    is_wanted: Callable[[str, str], bool] = lambda a, b: True,
) -> Iterator[dict[str, Any]]:
    """Compare each pair of models of a family, and check the facts against the history."""
    for a, b in itertools.combinations(folders, 2):
        if not is_wanted(a, b):
            continue
        report = compare(folders[a], folders[b], progress=False)
        earlier = a if a in ancestors(b, parents) else b if b in ancestors(a, parents) else None
        history = "strangers" if not is_related(a, b) else "siblings" if earlier is None else "descent"
        facts = [_judged_fact(fact, report, (a, b), earlier) for fact in report.direction]
        yield {"group": group, "a": a, "b": b, "history": history, "verdict": report.verdict.value, "facts": facts}


def _judged_fact(
    fact: DirectionFact, report: HomologyReport, names: tuple[str, str], earlier: str | None
) -> dict[str, str]:
    first = names[0] if fact.earlier == fact_side(report.reference) else names[1]
    return {"fact": fact.fact.value, "from": first, "points": points_at(first, earlier)}


def points_at(first: str, earlier: str | None) -> str:
    """Return whether a fact names the earlier model; ``earlier`` is None for siblings."""
    if earlier is None:
        return "sibling"
    return "right" if first == earlier else "wrong"


def of_demo(demo: Path) -> Iterator[dict[str, Any]]:
    """Compare every pair of the demo."""
    strangers = {"other-seed", "other-width"}
    yield from judged("demo", {name: demo / name for name in DEMO}, DEMO, lambda a, b: not {a, b} & strangers)


def of_zoo(families: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Compare every pair within families of the zoo; models that are not built are left out."""
    for family in families:
        members = [model for model in models((family,)) if (folder_of_model(model, FULL) / "zoo.json").is_file()]
        folders = {f"{family}/{model.member}": folder_of_model(model, FULL) for model in members}
        parents = {
            f"{family}/{name}": tuple(f"{family}/{parent}" for parent in m.parents) for name, m in MEMBERS.items()
        }
        # Models from the same initialisation are related, although neither was made from the other.
        seeds = {f"{family}/{name}": initialisations(name) for name in MEMBERS}
        yield from judged("zoo", folders, parents, lambda a, b, seeds=seeds: bool(seeds[a] & seeds[b]))


def of_edits(real: Path) -> Iterator[dict[str, Any]]:
    """Compare a real model with each of its edits."""
    folders = {folder.name: folder for folder in sorted(real.iterdir()) if any(folder.glob("*.safetensors"))}
    parents = {name: () if name == "base" else ("base",) for name in folders}
    for name in [name for name in folders if name != "base"]:
        yield from judged("real", {"base": folders["base"], name: folders[name]}, parents, lambda a, b: True)


def of_methods(place: Path) -> Iterator[dict[str, Any]]:
    """Compare SmolLM2-135M and a fine-tune with the results of published methods; roundings and merges pairwise."""
    base = base_folder(SMALL)
    tuned = "tuned-1e-4"
    folders, parents = {"base": base, tuned: built(Model(SMALL, tuned))}, {"base": (), tuned: ("base",)}
    for method in methods(SMALL):
        if method.is_published:
            folder = place / method.name
            if not folder.is_dir():
                write(load(base), base, method, folder, hides=False)
            folders[method.name] = folder
            parents[method.name] = ("base", tuned) if method.name in OF_TWO else ("base",)
    by_twos = {*OF_TWO, *ROUNDINGS}
    yield from judged(
        "methods", folders, parents, lambda a, b: True, lambda a, b: a in ("base", tuned) or {a, b} <= by_twos
    )


def section(lines: list[dict[str, Any]]) -> str:
    """Return the section of the evidence on facts that show a direction, in Markdown."""
    related = [line for line in lines if line["history"] != "strangers" and line["verdict"] == "homologous"]
    rows = []
    for group, title in GROUPS.items():
        for history in ("descent", "siblings"):
            here = [line for line in related if line["group"] == group and line["history"] == history]
            if here:
                facts = [fact for line in here for fact in line["facts"]]
                counts = [sum(fact["points"] == points for fact in facts) for points in ("right", "wrong", "sibling")]
                n_with = sum(bool(line["facts"]) for line in here)
                of_descent = history == "descent"
                cells = [counts[0] if of_descent else "", counts[1] if of_descent else "", counts[2] or ""]
                what = "one made from the other" if of_descent else "siblings"
                rows.append([title, what, len(here), n_with, *cells])
    kinds = []
    for kind, what in FACTS.items():
        facts = [fact for line in related for fact in line["facts"] if fact["fact"] == kind]
        counts = [sum(fact["points"] == points for fact in facts) for points in ("right", "wrong", "sibling")]
        if facts:
            kinds.append([what, *counts])
    n_strangers = sum(line["history"] == "strangers" for line in lines)
    n_of_strangers = sum(bool(line["facts"]) for line in lines if line["history"] == "strangers")
    n_wrong = sum(fact["points"] == "wrong" for line in lines for fact in line["facts"])
    families = ", ".join(dict.fromkeys(line["a"].partition("/")[0] for line in lines if line["group"] == "zoo"))
    return f"""## Facts that show a direction

Pairs with a known history were compared at level `auto` (`python -m benchmarks.direction`). Models of
[the zoo](../benchmarks/results/pages/the-zoo.md) come from the families {families}. For
[published methods](../benchmarks/results/pages/what-published-methods-leave.md), the model and a fine-tune of it
were compared with the result of each method, and roundings and merges with each other. A fact about weights means that
one model was made from the other, or from a relative of it with the same values, rows or layers.
**{n_wrong} facts point the wrong way.** Between siblings, a fact names the sibling with the original values or layers.
That sibling is not an ancestor, and a bill of materials lists it as a variant.

{_table(["models", "relation", "pairs", "with a fact", "right", "wrong", "names a sibling"], rows)}

{_table(["fact", "right", "wrong", "names a sibling"], kinds)}

Most published methods leave no fact, because pruning, low rank, merging and new heads look the same in both directions.
Facts are only collected for relatives. The verdict on QuaRot is `inconclusive` here: it rotates the inputs of down, so
no neuron confirms the layers.

{n_strangers} pairs of strangers were also compared; {n_of_strangers} of them have a fact. New rows at the mean and
adapters do not occur in these families. `tests/comparison/test_direction.py` has pairs for them, and for differences
that show no direction:

- A difference of low rank: a merged adapter can also be subtracted.
- Identical weights in some tensors.
- A layer or a channel that only one model has: it may have been removed from one model or added to the other.
- A model between two others: a mean of two fine-tunes, or the middle of an extrapolation.
- Rows of unused tokens near zero or far from each other: the vocabulary may have been reduced.

Dates of repositories on the Hub (`on_record_earlier`) are upload dates and are not counted here.
"""


def _table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main() -> None:
    """Compare, and store the results; ``python -m benchmarks.evidence`` writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, what in (
        ("demo", "the demo"),
        ("real", "a real model with its edits"),
        ("methods", "results of methods"),
    ):
        parser.add_argument(f"--{option}", type=Path, metavar="FOLDER", help=f"the folder of {what}")
    parser.add_argument("--zoo", action="store_true", help="every family of the zoo")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="these families of the zoo")
    arguments = parser.parse_args()
    families = arguments.family or (tuple(FAMILIES) if arguments.zoo else ())
    sources = (
        of_demo(arguments.demo) if arguments.demo else (),
        of_zoo(families),
        of_edits(arguments.real) if arguments.real else (),
        of_methods(arguments.methods) if arguments.methods else (),
    )
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = {(line["group"], line["a"], line["b"]): line for line in stored}
    for line in itertools.chain(*sources):
        lines[line["group"], line["a"], line["b"]] = line
        print(json.dumps(line), flush=True)
    kept = sorted(lines.values(), key=lambda line: tuple(GROUPS).index(line["group"]))
    RESULTS.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
