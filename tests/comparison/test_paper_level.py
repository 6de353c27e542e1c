"""Level ``paper``: Algorithms 1 to 3 as printed, on all rows of small models."""

import math

import pytest
import torch

from mdir_hf import HomologyReport, Verdict, compare
from mdir_hf.comparison.caveats import NO_LAYERS_FOR_PAPER, NO_ROWS_FOR_PAPER
from mdir_hf.demo.transformations import keep_channels, rotate_channels
from mdir_hf.report import LayerPattern
from tests.comparison.relatives import (
    DEPTH,
    IN_PLACE,
    SIZES,
    WIDTH,
    layer_pairs,
    of_layers,
    with_new_embeddings,
    with_permuted_channels,
)
from tests.method.obfuscation import SIZES as DEFAULTS
from tests.method.obfuscation import VOCABULARY, haar, new_model
from tests.specimens import tokens

VALUES = DEFAULTS["num_key_value_heads"] * SIZES["head_dim"]
COLUMNS = {
    "q": DEFAULTS["num_attention_heads"] * SIZES["head_dim"],
    "k": VALUES,
    "v": VALUES,
    "up": SIZES["intermediate_size"],
}
"""D of each projection that Algorithm 3 compares."""


def papers_log10_p(trace, width):
    return (math.lgamma(width + 1) - trace**2 / 2) / math.log(10.0)


def paper(reference, candidate):
    return compare(reference, candidate, level="paper")


@pytest.mark.parametrize(
    ("origins", "pattern"),
    [
        ([0, 1, 2, 3], LayerPattern.IDENTITY),
        ([0, 2, 3], LayerPattern.PRUNED),
        ([2, 0, 3, 1], LayerPattern.REORDERED),
        ([0, 1, 1, 2, 3], LayerPattern.REPEATED),
    ],
)
def test_layers_of_a_permuted_copy_have_the_papers_p(base, save, origins, pattern):
    candidate = save(with_permuted_channels(of_layers(base, origins)), "candidate")
    report = paper(save(base, "base"), candidate)
    printed = report.embedding.printed
    # Stored as float32, whose rounding changes the trace of a copy by about 1e-7 of itself.
    assert printed.trace == pytest.approx(WIDTH, rel=1e-6)
    assert printed.log10_p == pytest.approx(papers_log10_p(WIDTH, WIDTH), rel=1e-5)
    assert (printed.rank, printed.width, printed.common_tokens) == (WIDTH, WIDTH, report.embedding.common_tokens)
    assert (report.layers.method, report.layers.role, report.layers.residual_map) == ("algorithm 2", "v", "permutation")
    assert report.layers.pattern is pattern
    assert layer_pairs(report) == [(origin, place) for place, origin in enumerate(origins)]
    of_values = papers_log10_p(VALUES, VALUES) + math.log10(DEPTH)
    assert [match.log10_p for match in report.layers.matches] == pytest.approx([of_values] * len(origins), rel=1e-5)
    for row, of_reference in zip(report.layers.reference_layers, report.layers.matrix, strict=True):
        assert [row == origin for origin in origins] == [log10_p < -10.0 for log10_p in of_reference]


def test_projections_of_matched_layers_have_the_papers_p(base, save):
    report = paper(save(base, "base"), save(with_permuted_channels(of_layers(base, [2, 0])), "candidate"))
    found = {(*result.layer, result.role.value): result for result in report.modules}
    assert set(found) == {(*pair, role) for pair in ((2, 0), (0, 1)) for role in COLUMNS}
    for (*_, role), result in found.items():
        rank = min(COLUMNS[role], WIDTH)  # the stream is narrower than q and up
        assert result.trace == pytest.approx(rank, rel=1e-5)
        assert result.normalized_trace == pytest.approx(1.0, rel=1e-5)
        expected = papers_log10_p(rank, COLUMNS[role]) + math.log10(DEPTH)
        assert result.log10_p == pytest.approx(expected, rel=1e-4)


def test_layers_of_a_rotated_copy_match_behind_the_rotation(base, save):
    with torch.no_grad():
        for name, weight in base.named_parameters():
            if "norm" in name:
                weight.fill_(1.0)  # the printed algorithms do not fold gains
    rotated = of_layers(base, range(DEPTH))
    rotate_channels(rotated, haar(WIDTH, torch.Generator().manual_seed(2)))
    report = paper(save(base, "base"), save(rotated, "candidate"))
    assert report.embedding.printed.log10_p == 0.0
    assert (report.layers.residual_map, report.layers.fitted_on) == ("rotation", "embeddings")
    assert layer_pairs(report) == IN_PLACE
    assert {result.role.value for result in report.modules} == set(COLUMNS)


def test_strangers_have_no_matches(base, save):
    report = paper(save(base, "base"), save(new_model(seed=7, **SIZES), "stranger"))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.embedding.printed.log10_p == 0.0
    # From a separate simulation of 40 draws: at n = 96 the best permutation of a Haar matrix has a trace of 23.15, with
    # a standard deviation of 0.34; five are allowed.
    assert report.embedding.printed.trace == pytest.approx(23.15, abs=5 * 0.34)
    assert (report.layers.method, report.layers.pattern) == ("algorithm 2", LayerPattern.NONE)
    assert (report.layers.matches, report.modules) == ((), ())
    assert all(log10_p == 0.0 for row in report.layers.matrix for log10_p in row)


def test_no_verdict_depends_on_the_papers_algorithms(base, save):
    # The printed algorithms fail behind new embeddings, where neurons do not.
    report = paper(save(base, "base"), save(with_new_embeddings(with_permuted_channels(base)), "candidate"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.printed.log10_p == 0.0
    assert (report.layers.method, report.layers.matches, report.modules) == ("algorithm 2", (), ())
    assert report.projections is not None  # the table of level "layers" is there, too


def test_embeddings_of_other_width_have_no_p_of_the_paper(base, save):
    kept = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(3))[:64]
    report = paper(save(base, "base"), save(keep_channels(base, kept), "narrower"))
    printed = report.embedding.printed
    assert (printed.log10_p, printed.width, printed.rank) == (None, 64, 64)
    assert layer_pairs(report) == IN_PLACE


def test_without_common_tokens_a_note_says_so(base, save):
    renamed = save(of_layers(base, range(DEPTH)), "renamed", words=tokens(VOCABULARY, first=1000))
    report = paper(save(base, "base"), renamed)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert NO_ROWS_FOR_PAPER in report.caveats and NO_LAYERS_FOR_PAPER not in report.caveats
    assert report.modules is None
    assert report.embedding.printed is None


def test_the_results_survive_json(base, save):
    report = paper(save(base, "base"), save(with_permuted_channels(base), "candidate"))
    read = HomologyReport.from_json(report.to_json())
    assert (read.embedding.printed, read.layers, read.modules) == (
        report.embedding.printed,
        report.layers,
        report.modules,
    )
