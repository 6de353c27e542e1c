"""The three suites: which pairs of which models, and whether they are related.

Labels are those of who published them. Of the 111 pairs of model-provenance-kit some count what is no ancestry of
weights: Pythia-1.4b and -deduped share an initialisation at most and stand there as similar, with the provenance
"none"; a distilled student need not share a weight with its teacher.

The paper's suite has 24 of its 25 models, because nowhere does its text name one more. Its 25 stand in a figure whose
picture is not part of its source. The section about them names 20; SOLAR-10.7B and Mistral-7B-v0.1, the upscaling that
the section announces, Qwen3-0.6B-Base and Qwen3-8B-Base are from its other experiments. The rest of what it names are
models of its own (a retokenised Qwen2.5-0.5B, four of the ablation) and Llama3-V and MiniCPM-o, a case it recalls. The
25th is not guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class LabelledPair:
    """Two models and what is said of them.

    Attributes:
        reference: One.
        candidate: The other; in LeaFBench a source is compared with itself, too.
        related: Whether they are said to be related; None where that is said to be unclear.
        relation: How, in the words of the source; for LeaFBench the relation of the candidate to its base.
    """

    reference: str
    candidate: str
    related: bool | None
    relation: str


@dataclass(frozen=True)
class Suite:
    """A benchmark.

    Attributes:
        name: For the command line.
        source: Where its labels are from.
        pairs: What is compared.
    """

    name: str
    source: str
    pairs: tuple[LabelledPair, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """Every model once, in the order of the pairs."""
        return tuple(dict.fromkeys(name for pair in self.pairs for name in (pair.reference, pair.candidate)))

    def part(self, shard: tuple[int, int]) -> tuple[LabelledPair, ...]:
        """The pairs of one shard, ``(0, 4)`` for the first of four; those of one reference stay together."""
        at, n_shards = shard
        references = list(dict.fromkeys(pair.reference for pair in self.pairs))
        mine = {name for place, name in enumerate(references) if place % n_shards == at}
        return tuple(pair for pair in self.pairs if pair.reference in mine)


def leafbench() -> Suite:
    """The white-box part of LeaFBench: 13 sources against 65 models, themselves included; 845 pairs, 123 related."""
    models = _read("leafbench_models.json")
    pairs = tuple(
        LabelledPair(source["id"], model["id"], source["base"] == model["base"], model["relation"])
        for source in models
        if source["is_source"]
        for model in models
    )
    return Suite("leafbench", "LeaFBench, benchmark_config.yaml at c9e2fee", pairs)


def provenance_kit() -> Suite:
    """The 111 pairs published with model-provenance-kit: 55 similar, 56 not."""
    pairs = tuple(
        LabelledPair(pair["a"], pair["b"], pair["label"] == "similar", pair["relation"])
        for pair in _read("provenance_kit_pairs.json")
    )
    return Suite("provenance-kit", "model-provenance-kit 1.0, Benchmark_All.json", pairs)


def paper() -> Suite:
    """Every pair of the models that the paper's text names."""
    pairs = []
    for a, b in combinations(_read("paper_models.json"), 2):
        is_unclear = _is_unclear(a, b) or _is_unclear(b, a)
        related = None if is_unclear else a["group"] == b["group"]
        relation = "unclear" if is_unclear else b["relation"] if related else "none"
        pairs.append(LabelledPair(a["id"], b["id"], related, relation))
    return Suite("paper", "arXiv:2508.06309, section on more comparisons", tuple(pairs))


SUITES: dict[str, Callable[[], Suite]] = {"leafbench": leafbench, "provenance-kit": provenance_kit, "paper": paper}
"""By name on the command line."""


def _is_unclear(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return any(group in ("*", b["group"]) for group in a.get("unclear_with", ()))


def _read(name: str) -> list[dict[str, Any]]:
    return json.loads((DATA / name).read_text(encoding="utf-8"))
