"""Models with matrices of unusual shapes."""

import pytest
import torch

from mdir_hf import HomologyChecker, Reason, Verdict
from mdir_hf.report import Outcome, Treatment
from tests.model.roles.tiny_causal import build_module, save_and_open
from tests.specimens import gaussian, mlp_tensors, write_model


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
            tmp_path / "candidate", level="layers", progress=False
        )

    return of


def test_embedding_rows_that_the_head_lacks_are_compared(related):
    report = related("mllama")  # the embedding has eight more rows than the head
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.common_tokens == 2056 and report.embedding.is_copied


def test_projected_channels_are_not_taken_for_the_streams(related):
    report = related("electra", embedding_size=48)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.matched_channels == 48
    assert (report.layers.residual_map, len(report.layers.matches)) == ("identity", 2)


def test_more_rotary_rows_than_a_head_has_are_taken_for_all(related):
    # The config of MiniMax-M3 has a separate value for them, for heads of 128 rows.
    report = related("minimax_m3_vl_text", rotary_dim=64)
    assert report.verdict is Verdict.HOMOLOGOUS
    outcomes = {(result.layer.candidate, result.role.value): result.outcome for result in report.projections.results}
    assert outcomes[0, "q"] is outcomes[0, "k"] is Outcome.KEPT


LLAMA = {"model_type": "llama", "hidden_size": 64, "vocab_size": 300, "num_attention_heads": 4, "num_hidden_layers": 3}


def strangers(folder, rests):
    """Two strangers of three layers each, with the tensors of these names in each layer."""

    def one(name, seed):
        layers = {f"model.layers.{i}.{rest}.weight": gaussian(64, 64, seed + i) for i in rests for rest in rests[i]}
        return write_model(folder / name, gaussian(300, 64, 10 * seed), config=LLAMA, further=layers)

    reference = HomologyChecker.from_pretrained(one("reference", 100))
    return reference.compare(one("candidate", 200), progress=False)


VALUE, UNKNOWN = "self_attn.v_proj", "mixing.amount"


@pytest.mark.parametrize(
    ("n_unknown", "reason"), [(1, None), (2, Reason.WEIGHTS_UNREADABLE)], ids=["one of three", "two of three"]
)
def test_most_layers_must_be_comparable(tmp_path, n_unknown, reason):
    rests = {i: [UNKNOWN if i < n_unknown else "mlp.up_proj"] for i in range(3)}
    assert strangers(tmp_path, rests).reason == reason


@pytest.mark.parametrize("known", [None, VALUE])
def test_layers_without_neurons_or_keys_are_inconclusive_and_listed(tmp_path, known):
    report = strangers(tmp_path, {0: [UNKNOWN if known is None else known], 1: [UNKNOWN], 2: [UNKNOWN]})
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)
    for side in (report.coverage.reference, report.coverage.candidate):
        unplaced = next(part for part in side if part.part.startswith("unplaced"))
        assert unplaced.treatment is Treatment.NOT_COMPARED and unplaced.tensors == (3 if known is None else 2)


def test_models_whose_layers_share_no_role_are_inconclusive(tmp_path):
    folders = [
        write_model(
            tmp_path / name,
            gaussian(300, 64, seed),
            config=LLAMA,
            further={f"model.layers.{i}.{rest}.weight": gaussian(64, 64, seed + i) for i in range(3)},
        )
        for name, rest, seed in (("reference", VALUE, 300), ("candidate", "mlp.up_proj", 400))
    ]
    report = HomologyChecker.from_pretrained(folders[0]).compare(folders[1], progress=False)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)


@pytest.mark.parametrize("n_heads", [(2, 4), (8, 2)])
def test_strangers_with_different_numbers_of_heads_are_compared(tmp_path, n_heads):
    folders = []
    for at, n in enumerate(n_heads):
        config = {**LLAMA, "num_attention_heads": 8, "num_key_value_heads": n, "head_dim": 16}
        further = {}
        for i in range(3):
            further |= mlp_tensors(64, 80, 1000 * at + 10 * i, layer=i)
            further[f"model.layers.{i}.self_attn.k_proj.weight"] = gaussian(16 * n, 64, 1000 * at + 10 * i + 5)
        folders.append(write_model(tmp_path / f"{at}", gaussian(300, 64, at), config=config, further=further))
    report = HomologyChecker.from_pretrained(folders[0]).compare(folders[1], progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert 0.0 < report.excludes.keys < 1.0
