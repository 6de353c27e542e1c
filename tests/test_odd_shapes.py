"""Models whose matrices do not have the shapes that most have."""

import pytest
import torch

from mdir_hf import HomologyChecker
from tests.anatomy.tiny_causal import build_module, save_and_open


@pytest.fixture
def related(tmp_path):
    def of(model_type, **more):
        module = build_module(model_type, **more)
        save_and_open(module, tmp_path / "reference")
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    parameter += 0.01 * parameter.std() * torch.randn_like(parameter)
        save_and_open(module, tmp_path / "candidate")
        return HomologyChecker.from_pretrained(tmp_path / "reference").compare(
            tmp_path / "candidate", level="body", progress=False
        )

    return of


def test_an_output_head_without_the_added_tokens_is_compared_on_its_own_rows(related):
    report = related("mllama")  # eight more rows in the embedding than in the head
    assert report.verdict.value == "homologous"
    assert (report.embedding.common_tokens, report.unembedding.common_tokens) == (2056, 2048)
    assert report.unembedding.log10_p < -100


def test_channels_of_a_projected_embedding_are_not_taken_for_those_of_the_stream(related):
    report = related("electra", embedding_size=48)
    assert report.verdict.value == "homologous"
    assert report.embedding.matched_channels == 48
    assert (report.layers.outer, len(report.layers.matches)) == ("identity", 2)
    assert report.layers.log10_p < -100


def test_more_rotary_rows_than_a_head_has_are_taken_for_all(related):
    # The config of MiniMax-M3 has a number of its own for them, made for heads of 128 rows.
    report = related("minimax_m3_vl_text", rotary_dim=64)
    assert report.verdict.value == "homologous"
    assert any(module.role == "q" for module in report.modules)
