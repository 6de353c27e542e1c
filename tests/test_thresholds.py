"""Each threshold lies between what stored measurements of strangers and of relatives reach."""

import ast
import json
from pathlib import Path

import pytest

from mdir_hf import thresholds
from mdir_hf.comparison.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def lines(name):
    return [json.loads(line) for line in (RESULTS / name).read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def real():
    return lines("real-pairs.jsonl")


def test_no_more_than_fifteen_numbers_decide_and_each_says_why():
    tree = ast.parse(Path(thresholds.__file__).read_text("utf-8"))
    numbers = [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]
    documented = [node for node in tree.body[2:] if isinstance(node, ast.Expr)]
    assert len(numbers) == len(documented) <= 15
    used = "\n".join(path.read_text("utf-8") for path in (ROOT / "mdir_hf").rglob("*.py"))
    assert all(used.count(name) > 1 for name in numbers)


def test_certain_neurons_of_strangers_and_framers_stay_below_half_and_those_of_relatives_reach_it(real):
    compared = [pair for pair in real if pair["neurons"] and not pair["related"]]
    strangers = [pair["neurons"]["most_certain"] / pair["neurons"]["tested"] for pair in compared]
    framed = [
        framing["most_certain"] / framing["tested"]
        for framing in lines("framing.jsonl")
        if framing["copied"] == "nothing" and framing["tested"]
    ]
    null = [kind["most_certain"] / 64 for kind in lines("neuron-null.jsonl") if kind["kind"] != "noisy copies"]
    settled = [
        pair["neurons"]["most_certain"] / pair["neurons"]["tested"]
        for pair in real
        if pair["related"] and pair["verdict"] == "homologous" and pair["neurons"] and pair["neurons"]["n_matched"]
    ]
    assert len(strangers) >= 3 and len(framed) >= 30 and len(settled) >= 100
    assert max(*strangers, *framed, *null) < thresholds.LEAST_CERTAIN_SHARE <= min(settled)


def test_cosines_of_copied_embeddings_reach_the_limit_and_those_of_strangers_do_not(real):
    cosines = [(pair["related"], pair["embedding"]["cosine"]) for pair in real if pair["embedding"]]
    strangers = [cosine for related, cosine in cosines if not related and cosine is not None]
    copied = [pair["embedding"]["cosine"] for pair in real if pair["embedding"] and pair["reason"] == "embeddings_only"]
    assert all(cosine < thresholds.COPIED_COSINE for cosine in strangers)
    assert copied and min(copied) >= thresholds.COPIED_COSINE


def test_the_default_level_is_that_of_the_stored_results(real):
    assert Settings().alpha == thresholds.ALPHA
    # 64! possible orders of 64 neurons: every stored p of related pairs by number is below the level.
    assert all(
        pair["log10_p"] < -10 for pair in real if pair["verdict"] == "homologous" and pair["log10_p"] is not None
    )


def test_the_script_of_the_page_has_the_same_default_of_alpha():
    script = (Path(__file__).parents[1] / "space" / "mdir_space" / "page" / "page.js").read_text("utf-8")
    assert f'const DEFAULT_ALPHA = "{thresholds.ALPHA:g}";' in script
