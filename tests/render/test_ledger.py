"""The ledger of a report: shares of the bytes that match, match nothing, and were not compared."""

import re
from dataclasses import replace

from mdir_hf.render.ledger import ledger_html, ledger_of
from mdir_hf.report import Coverage, PartCoverage, Treatment, ledger_text
from mdir_hf.report.words import unmatched_text
from tests.render.figures.drawn_reports import a_report


def entry(part, n_bytes, is_match, is_loaded=True):
    treatment = Treatment.NOT_COMPARED if is_match is None else Treatment.SAMPLED
    return PartCoverage(
        part=part,
        layers=2,
        tensors=9,
        bytes=n_bytes,
        treatment=treatment,
        reason=None,
        is_match=is_match,
        is_loaded=is_loaded,
    )


WHISPER = (entry("language model", 230, True), entry("stack encoder", 740, False), entry("positions", 30, None))
REPORT = replace(a_report(), coverage=Coverage(reference=WHISPER, candidate=WHISPER[:1]))


def test_the_line_names_each_group_with_shares():
    assert ledger_text(WHISPER) == (
        "matches: language model (23 %); no match: stack encoder (74 %); not compared: positions (3.0 %)"
    )
    assert unmatched_text(WHISPER) == "stack encoder (74 %)"
    small = (entry("language model", 950, True), entry("talker", 50, False))
    assert unmatched_text(small) == ""


def test_a_large_part_is_named_although_little_of_it_was_compared():
    sampled = (entry("language model", 800, True), entry("vision tower", 80, False), entry("vision tower", 120, None))
    assert unmatched_text(sampled) == "part of the vision tower (8.0 %)"
    small = (entry("language model", 920, True), entry("vision tower", 32, False), entry("vision tower", 48, None))
    assert unmatched_text(small) == ""


def test_weights_that_are_not_loaded_are_marked():
    assert ledger_text([entry("talker", 100, True, is_loaded=False)]) == (
        "matches: talker (100 %, not loaded by this model)"
    )


def test_the_shares_of_a_model_sum_to_one_and_fill_the_bar():
    reference, candidate = ledger_of(REPORT)
    assert reference.shares == (0.23, 0.74, 0.03) and candidate.shares == (1.0, 0.0, 0.0)
    assert reference.words == "23 % match, 74 % no match, 3.0 % not compared (by samples)"
    drawn = str(ledger_html((reference,)))
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn)]
    assert abs(sum(widths) - 100) < 0.02  # three widths, each rounded to 0.01
    assert 'aria-label="Shares of the bytes. Reference: 23 % match' in drawn


def test_unknown_sizes_give_no_bar():
    unknown = Coverage(reference=(entry("language model", None, True),), candidate=WHISPER)
    assert ledger_of(replace(REPORT, coverage=unknown)) == ()
    assert ledger_of(replace(REPORT, coverage=None)) == ()
