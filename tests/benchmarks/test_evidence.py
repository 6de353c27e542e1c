"""The page of evidence says what the results say, and names what they do not."""

import re
from pathlib import Path

import pytest

from benchmarks.evidence.page import PAPER, SECTIONS, make_evidence
from benchmarks.evidence.peers import above_every_stranger, of_checker, of_peer
from benchmarks.evidence.peers import relation_table as side_by_side
from benchmarks.evidence.tables import RESULTS, read_results, read_written
from benchmarks.evidence.zoo import base_table, missed_text, relation_table

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
        "settled_by": "screen",
        "cpu_s": 1.0,
        "bytes_read": 1,
        "bytes_of_weights": 10,
    }


def test_the_page_is_what_the_script_makes_of_the_results():
    made = make_evidence(read_results(), read_written())
    assert (DOCS / "evidence.md").read_text(encoding="utf-8") == made.text
    for name in made.figures:
        assert (DOCS / "images" / name).exists()


def test_pictures_of_the_page_are_there():
    for name in re.findall(r"\]\(([^)]+\.png)\)", (DOCS / "evidence.md").read_text(encoding="utf-8")):
        assert (DOCS / name).exists(), name


def test_every_result_file_is_of_a_section():
    needed = {need for _, needs, _ in SECTIONS for need in needs}
    assert {path.stem for path in RESULTS.glob("*.json*")} <= needed | set(PAPER)


def test_without_results_every_section_is_named_as_not_run():
    text = make_evidence({}, {}).text
    for name in (*(name for name, _, _ in SECTIONS), *PAPER.values()):
        assert f"- {name}: no `" in text


def test_sections_of_the_paper_are_taken_over_with_their_pictures():
    text = make_evidence({}, {"paper-noise": "## Noise\n\n![Traces](paper-noise-traces.png)\n"}).text
    assert "## Noise\n\n![Traces](../benchmarks/results/paper-noise-traces.png)\n" in text


def test_a_missed_relative_without_a_reason_is_said_to_have_none():
    text = missed_text([row("sft", "rl", verdict="no_evidence", log10_p=0.0)])
    assert text == "- **No reason is known**: llama: sft + rl (no_evidence)."


def test_the_base_table_has_log10_p_and_the_step_and_strangers_in_italics():
    text = base_table(
        [row("base", "sft"), row("base", "other-seed", related=False, verdict="no_evidence", log10_p=0.0)]
    )
    assert "| sft | -300 s |" in text
    assert "| *other-seed* | - |" in text


def test_a_pair_counts_for_both_of_its_members():
    text = relation_table([row("sft", "rl"), row("sft", "merge", verdict="no_evidence", log10_p=0.0)])
    assert "| sft | 1 of 2 |" in text
    assert "| rl | 1 of 1 |" in text
    assert "| merge | 0 of 1 |" in text


@pytest.mark.parametrize(
    ("threshold", "rule", "decided"), [(0.5, "score at least 0.5", [True, False]), (None, "none", None)]
)
def test_a_peer_is_judged_by_its_own_threshold_where_it_has_one_and_an_unanswered_pair_is_not_accepted(
    threshold, rule, decided
):
    ours = {(r["a"], r["b"]): r for r in (row("base", "sft"), row("base", "rl"))}
    judged = of_peer(
        {
            "peer": "P",
            "threshold": threshold,
            "models": ["llama/base", "llama/sft", "llama/rl"],
            "fingerprint_cpu_s": [1.0, 2.0, 3.0],
            "scores": [[0, 1, 0.7, None, 0.5, None], [0, 2, None, None, 0.5, 0]],
        },
        ours,
    )
    assert (judged.rule, judged.decided, judged.scores) == (rule, decided, [0.7, None])
    assert judged.seconds == pytest.approx((3.5 + 4.5) / 2)


def test_a_peer_with_p_values_and_no_threshold_is_judged_at_alpha():
    ours = {(r["a"], r["b"]): r for r in (row("base", "sft"), row("base", "rl"))}
    judged = of_peer(
        {
            "peer": "P",
            "threshold": None,
            "models": ["llama/base", "llama/sft", "llama/rl"],
            "fingerprint_cpu_s": [0.0, 0.0, 0.0],
            "scores": [[0, 1, 9.0, -12.0, 0.0, None], [0, 2, 8.0, -9.0, 0.0, None]],
        },
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
        {
            "peer": "P",
            "threshold": None,
            "models": ["llama/base", "llama/sft", "llama/retokenised", "llama/other-seed"],
            "fingerprint_cpu_s": [0.0] * 4,
            "scores": [[0, 1, 0.4, None, 0.0, None], [0, 2, None, None, 0.0, 0], [0, 3, 0.6, None, 0.0, None]],
        },
        ours,
    )
    return of_checker(ours), peer


def test_only_relatives_above_every_stranger_count_before_the_first_error():
    checker, peer = judged_pairs()
    assert above_every_stranger(checker) == {("llama/base", "llama/sft")}
    assert above_every_stranger(peer) == set()


def test_side_by_side_a_pair_without_an_answer_is_a_question_mark():
    text = side_by_side(judged_pairs())
    assert "| sft | 1 | 1 | 0 |" in text
    assert "| retokenised | 1 | 0 | ? |" in text
    assert "| *other-seed* | 1 | 0 | 0 |" in text
