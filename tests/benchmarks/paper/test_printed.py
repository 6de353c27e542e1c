"""The scripts that run Algorithm 1 as printed: noise on real models, and the matrix of 25 models."""

import math

import numpy as np
import pytest
import torch

from benchmarks.evidence.real import printed_p
from benchmarks.paper.ablation import value_picture
from benchmarks.paper.noise_real import LEVELS, PAPER, printed_row, section_of
from benchmarks.paper.printed_matrix import REAL, RWKV, ZOO, judged, shades
from benchmarks.paper.printed_matrix import section_of as section_of_matrix
from benchmarks.peers.plain_mdir import Weights
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import open_model, read_embedding
from benchmarks.real.table import PAPER_P, table
from tests.space.models import deep_orders, write_deep
from tests.specimens import gaussian, write_model


def test_a_copy_has_the_whole_trace_and_a_stranger_little():
    first, second = gaussian(400, 32, 0), gaussian(400, 32, 1)
    copy = printed_row(first, 2 * first)
    assert (copy["trace"], copy["normalized_trace"], copy["cosine"]) == (32, 1, 1)
    assert copy["log10_p"] == pytest.approx((math.lgamma(33) - 32**2 / 2) / math.log(10), abs=0.1)
    assert printed_row(first, second)["log10_p"] == 0


def test_the_noise_section_has_the_papers_numbers_beside_ours():
    rows = [{"level": level, "trace": 5.0, "normalized_trace": 0.5, "log10_p": -3.0, "cosine": 0.1} for level in LEVELS]
    section = section_of([{"key": "k", "name": "Ours", "width": 10, "rows": rows}])
    for name in ("Ours (here, n = 10)", *PAPER):
        assert name in section
    assert "0.982" in section and "31,412" in section
    assert "Ours did not run on text" in section


def weights(folder, embedding):
    model = open_model(write_model(folder, embedding), Reads())
    return Weights(model, read_embedding(model), ())


def test_a_pair_is_judged_by_its_embeddings_in_either_order(tmp_path):
    base = weights(tmp_path / "a", gaussian(400, 64, 0))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    moved = weights(tmp_path / "b", gaussian(400, 64, 0)[:, order])
    stranger = weights(tmp_path / "c", gaussian(400, 64, 1))
    assert judged(base, moved) == judged(moved, base)
    assert judged(base, moved)["trace"] == pytest.approx(64, abs=0.01)
    assert judged(base, stranger)["log10_p"] == 0


def test_the_panel_of_values_follows_the_channels_of_the_embedding(tmp_path):
    base, moved = write_deep(tmp_path / "a"), write_deep(tmp_path / "b", is_moved=True)
    picture = value_picture(base, moved)
    heads = deep_orders()[1]
    rows = (heads[:, None] * (len(picture) // 4) + torch.arange(len(picture) // 4)).flatten().numpy()
    assert np.allclose(picture[rows, np.arange(len(rows))], 1, atol=1e-3)
    assert np.isclose((picture**2).sum(), len(rows), rtol=0.05)


def test_the_matrix_names_false_negatives_and_false_positives():
    assert len(REAL) + len(ZOO) + len(RWKV) == 25
    data = {
        "lineage": {"a": "x", "b": "x", "c": "y"},
        "pairs": [
            {"a": "a", "b": "a", "trace": 9.0, "log10_p": -100.0},
            {"a": "a", "b": "b", "trace": 1.0, "log10_p": 0.0},
            {"a": "a", "b": "c", "trace": 9.0, "log10_p": -50.0},
            {"a": "b", "b": "c", "trace": None, "log10_p": None},
        ],
    }
    section = section_of_matrix(data)
    assert "Related and not found: a and b (0). Strangers below 1e-10: a and c (-50)." in section
    assert "0 of 1 related" in section and "1 pairs have no common token" in section.replace("\n", " ")
    shown = shades(data)
    assert np.array_equal(shown, shown.T)
    assert shown[0, 0] == pytest.approx(math.log(100 * math.log(10))) and shown[0, 1] == 0


def test_the_tables_of_pairs_have_the_papers_p():
    printed = printed_p(
        [
            {"group": "real", "name": "m/permuted", "embedding_log10_p": -70703.4},
            {"group": "real", "name": "x | y", "embedding_log10_p": 0.0},
            {"group": "zoo", "name": "p | q", "embedding_log10_p": -5.0},
            {"group": "real", "name": "z", "reason": "no common token"},
        ]
    )
    assert printed == {("smollm2-135m-instruct", "m/permuted"): -70703.4, ("x", "y"): 0.0}
    row = {
        "related": True, "verdict": "homologous", "reason": None, "kind": "edit", "log10_p": -9.0, "embedding": None,
        "bytes_read": 1e6, "cpu_s": 1.0, "layers": None, "a": "x", "b": "y",
    }  # fmt: skip
    head, _, first, second = table([row, row | {"b": "z"}], printed).splitlines()
    column = [cell.strip() for cell in head.split("|")].index(PAPER_P)
    assert [line.split("|")[column].strip() for line in (first, second)] == ["0", ""]
