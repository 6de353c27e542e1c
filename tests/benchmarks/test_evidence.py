"""The page of evidence agrees with the results and names missing results."""

from pathlib import Path

import pytest

from benchmarks.evidence.costs import compared
from benchmarks.evidence.judged import of_checker, of_peer
from benchmarks.evidence.page import SECTIONS, make_evidence
from benchmarks.evidence.peers import above_every_stranger
from benchmarks.evidence.tables import RESULTS, read_results

DOCS = Path(__file__).parents[2] / "docs"


def row(a, b, *, related=True, verdict="homologous", log10_p=-300.0, relation="sft"):
    return {
        "a": f"llama/{a}",
        "b": f"llama/{b}",
        "level": "auto",
        "related": related,
        "relation": relation,
        "verdict": verdict,
        "reason": None,
        "log10_p": log10_p,
        "settled_by": "number",
        "cpu_s": 1.0,
        "bytes_read": 3,
        "bytes_beside_weights": 2,
        "bytes_of_weights": 10,
    }


def peer_row(models, scores, *, threshold=None, cpu_s=(0.0, 0.0, 0.0, 0.0)):
    return {
        "peer": "P",
        "threshold": threshold,
        "models": models,
        "fingerprint_cpu_s": cpu_s,
        "fingerprint_bytes": [1, 2, 3, 4],
        "fingerprint_bytes_beside": [10, 20, 30, 40],
        "scores": scores,
    }


def test_the_pages_match_the_output_of_the_script():
    made = make_evidence(read_results())
    for place, text in made.pages.items():
        assert (DOCS / place).read_text(encoding="utf-8") == text
    tables = (RESULTS / "pages").glob("*.md")
    assert {path.name for path in tables if path.name != "coverage.md"} == {
        place.rpartition("/")[2] for place in made.pages if "/" in place
    }
    sentences = [line for line in made.pages["evidence.md"].splitlines() if not line.startswith("|")]
    assert len(" ".join(sentences).split()) < 700  # a page to read; the others are for reference
    for name in made.figures:
        assert (DOCS / "images" / name).exists()


def test_every_result_file_belongs_to_a_section():
    needed = {need for _, needs, _ in SECTIONS for need in needs}
    of_guides = {"space-visitors", "survey-scale", "survey-disguises", "real-alignment"}
    assert {path.stem for path in RESULTS.glob("*.jsonl")} <= needed | of_guides


def test_without_results_every_section_is_named_as_not_run():
    text = make_evidence({}).pages["evidence.md"]
    for name, _, _ in SECTIONS:
        assert f"- {name}: no `" in text


@pytest.mark.parametrize(
    ("threshold", "rule", "decided"), [(0.5, "score at least 0.5", [True, False]), (None, "none", None)]
)
def test_a_peer_is_judged_by_its_own_threshold(threshold, rule, decided):
    ours = {(r["a"], r["b"]): r for r in (row("base", "sft"), row("base", "rl"))}
    judged = of_peer(
        peer_row(
            ["llama/base", "llama/sft", "llama/rl"],
            [[0, 1, 0.7, None, 0.5, None, 4], [0, 2, None, None, 0.5, 0, 4]],
            threshold=threshold,
            cpu_s=[1.0, 2.0, 3.0],
        ),
        ours,
    )
    assert (judged.rule, judged.decided, judged.scores) == (rule, decided, [0.7, None])
    assert [cost.seconds for cost in judged.costs] == pytest.approx([3.5, 4.5])
    assert [cost.score_seconds for cost in judged.costs] == [0.5, 0.5]
    # Two fingerprints, and the reads of the score.
    assert [cost.weights for cost in judged.costs] == [1 + 2 + 4, 1 + 3 + 4]
    assert [cost.beside for cost in judged.costs] == [10 + 20, 10 + 30]


def test_a_peer_with_p_values_and_no_threshold_is_judged_at_alpha():
    ours = {(r["a"], r["b"]): r for r in (row("base", "sft"), row("base", "rl"))}
    judged = of_peer(
        peer_row(
            ["llama/base", "llama/sft", "llama/rl"], [[0, 1, 9.0, -12.0, 0.0, None, 0], [0, 2, 8.0, -9.0, 0.0, None, 0]]
        ),
        ours,
    )
    assert (judged.rule, judged.decided) == ("its p at 1e-10", [True, False])


def judged_pairs():
    rows = (
        row("base", "sft"),
        row("base", "retokenised", verdict="no_evidence", log10_p=0.0),
        row("base", "other-seed", related=False, verdict="no_evidence", log10_p=0.0),
    )
    ours = {(r["a"], r["b"]): r for r in rows}
    peer = of_peer(
        peer_row(
            ["llama/base", "llama/sft", "llama/retokenised", "llama/other-seed"],
            [[0, 1, 0.4, None, 0.0, None, 0], [0, 2, None, None, 0.0, 0, 0], [0, 3, 0.6, None, 0.0, None, 0]],
        ),
        ours,
    )
    return of_checker(ours), peer


def test_only_relatives_above_every_stranger_count():
    checker, peer = judged_pairs()
    assert above_every_stranger(checker) == {("llama/base", "llama/sft")}
    assert above_every_stranger(peer) == set()


# --- costs


def paid(settled_by, *, cpu_s, bytes_read, bytes_beside_weights):
    return {
        "settled_by": settled_by,
        "cpu_s": cpu_s,
        "bytes_read": bytes_read,
        "bytes_beside_weights": bytes_beside_weights,
        "bytes_of_weights": 100,
    }


def beside_the_checker():
    """Neurons in place settle the first pair, and the peer has no result for the third."""
    rows = (
        row("base", "sft") | paid("near", cpu_s=1.0, bytes_read=12, bytes_beside_weights=10),
        row("base", "rl") | paid("keys", cpu_s=3.0, bytes_read=150, bytes_beside_weights=10),
        row("base", "other-seed", related=False) | paid(None, cpu_s=9.0, bytes_read=900, bytes_beside_weights=0),
    )
    ours = {(r["a"], r["b"]): r for r in rows}
    peer = peer_row(
        ["llama/base", "llama/sft", "llama/rl", "llama/other-seed"],
        [[0, 1, 0.4, None, 0.5, None, 0], [0, 2, 0.4, None, 0.5, None, 10], [0, 3, None, None, 9.0, 0, 99]],
        cpu_s=[0.0, 0.0, 1.0, 0.0],
    )
    return ours, peer


def test_costs_are_compared_on_the_pairs_that_a_method_answers():
    ours, peer = beside_the_checker()
    checker, other = compared([of_checker(ours), of_peer(peer, ours)], ours)
    assert checker.weights == pytest.approx((2 + 140 + 900) / 3)
    assert (other.seconds, other.times_seconds) == pytest.approx((1.0, 1.0 / 2.0))
    assert other.weights == pytest.approx((3 + 14) / 2)
    assert other.times_weights() == pytest.approx((3 + 14) / (2 + 140))
