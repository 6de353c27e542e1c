"""Models in which a channel's number has a meaning: strangers that agree in it, and relatives."""

import math

import pytest
import torch

from mdir_hf import HomologyChecker, Verdict
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, SampledModel, take_fingerprint
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.building import what_is_excluded
from mdir_hf.lineage.index.identify import judge_hits
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.report import ModelSummary
from tests.specimens import gaussian, write_model

V, N, N_WAVES = 1500, 96, 16


def embedding(seed):
    """Rows of a model that learnt the same about each token as other models, along the same waves over the channels.

    Trained XGLM models behave in this way: their trace of 5 in the original order lies in the few dimensions that
    sinusoids of 64 positions span (docs/LOG.md, 2026-11-24).
    """
    learnt = gaussian(V, N_WAVES, 99)
    phases = 2 * math.pi * torch.arange(1, N_WAVES // 2 + 1)[:, None] * torch.arange(N) / N
    waves = torch.cat((phases.sin(), phases.cos()))  # equally strong in every channel: no axis stands out
    return gaussian(V, N, seed) + 0.8 * learnt @ waves / math.sqrt(N / 2)


def config(model_type, width):
    return {"model_type": model_type, "hidden_size": width, "vocab_size": V, "tie_word_embeddings": True}


@pytest.fixture
def compared(tmp_path):
    def compare(first_type, first, second_type, second, **options):
        number = len(list(tmp_path.iterdir()))
        folders = [
            write_model(tmp_path / f"{number}-{at}", rows, config=config(model_type, rows.shape[1]))
            for at, (model_type, rows) in enumerate(((first_type, first), (second_type, second)))
        ]
        return HomologyChecker.from_pretrained(folders[0]).compare(folders[1], progress=False, **options)

    return compare


def test_the_embeddings_of_strangers_that_agree_only_in_the_numbers_are_not_alike(compared):
    first, second = embedding(1), embedding(2)
    taken_for_plain = compared("gpt2", first, "gpt2", second)
    assert taken_for_plain.embedding.log10_p < -10  # a false positive of the test of the original order
    assert taken_for_plain.verdict is Verdict.NO_EVIDENCE  # which no verdict rests on
    for types in (("xglm", "xglm"), ("rwkv", "xglm"), ("gpt2", "xglm"), ("xglm", "gpt2")):
        report = compared(types[0], first, types[1], second)
        assert report.verdict is Verdict.NO_EVIDENCE
        assert (report.embedding.log10_p, report.embedding.is_significant) == (0.0, False)


@pytest.mark.parametrize("order", [torch.arange(N), torch.randperm(N, generator=torch.Generator().manual_seed(3))])
def test_the_channels_of_relatives_with_such_numbers_are_matched(compared, order):
    first = embedding(1)
    report = compared("xglm", first, "xglm", (first + gaussian(V, N, 5))[:, order], describes=True)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.matched_channels == N and report.embedding.is_copied


def kept(model_type, rows):
    words = tuple(f"word{number}".encode() for number in range(len(rows)))
    return Fingerprint(ModelSummary("me/it", None, "0" * 40, model_type, N, 2, V), words, rows, 10**9)


def test_an_index_tests_all_orders_if_numbers_have_a_meaning():
    rows = {seed: embedding(seed)[:512] for seed in (1, 2)}
    log10_p, noise = {}, {}
    for model_type in ("gpt2", "xglm"):
        index = BaseIndex(list(kept(model_type, rows[1]).tokens), [kept(model_type, rows[1])])
        query = kept(model_type, rows[2])
        ((_, log10_p[model_type]),) = judge_hits(index, query, top=1, alpha=1e-10)
        _, noise[model_type] = what_is_excluded(index, N, query.tokens, 1e-10)
        ((_, of_a_copy),) = judge_hits(index, kept(model_type, rows[1]), top=1, alpha=1e-10)
        assert of_a_copy < -1000
    assert log10_p["gpt2"] < 0.0 == log10_p["xglm"]
    for one, other in (("gpt2", "xglm"), ("xglm", "gpt2")):
        index = BaseIndex(list(kept(one, rows[1]).tokens), [kept(one, rows[1])])
        ((_, of_both),) = judge_hits(index, kept(other, rows[2]), top=1, alpha=1e-10)
        assert of_both == 0.0
    assert 0.5 < noise["xglm"] < noise["gpt2"]


def test_the_meaning_of_numbers_is_kept_with_sampled_rows(tmp_path):
    said = {**config("gpt2", N), "matryoshka_dimensions": [32, N]}
    model = Model(open_repository(write_model(tmp_path / "nested", embedding(1), config=said)))
    sample = take_fingerprint(model, [f"w{row}".encode() for row in range(512)])
    (tmp_path / "kept").write_bytes(sample.to_bytes())
    index = BaseIndex(list(sample.tokens), [sample])
    index.save(tmp_path / "index")
    for one in (sample, Fingerprint.load(tmp_path / "kept"), BaseIndex.load(tmp_path / "index").bases[0]):
        assert "Matryoshka" in (one.channel_numbers or "")
        assert SampledModel(one).anatomy.channel_numbers == one.channel_numbers
