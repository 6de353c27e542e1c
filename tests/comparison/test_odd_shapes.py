"""Models with matrices of unusual shapes."""

import pytest
import torch

from mdir_hf import HomologyChecker, Reason, Verdict
from tests.model.roles.tiny_causal import build_module, save_and_open
from tests.specimens import gaussian, write_model

pytestmark = pytest.mark.usefixtures("without_neuron_numbers")


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
            tmp_path / "candidate", level="full", progress=False
        )

    return of


def test_a_head_without_the_added_tokens_is_compared(related):
    report = related("mllama")  # the embedding has eight more rows than the head
    assert report.verdict.value == "homologous"
    assert (report.embedding.common_tokens, report.unembedding.common_tokens) == (2056, 2048)
    assert report.unembedding.log10_p < -100


def test_projected_channels_are_not_taken_for_the_streams(related):
    report = related("electra", embedding_size=48)
    assert report.verdict.value == "homologous"
    assert report.embedding.matched_channels == 48
    assert (report.layers.residual_map, len(report.layers.matches)) == ("identity", 2)
    assert report.layers.log10_p < -100


def test_more_rotary_rows_than_a_head_has_are_taken_for_all(related):
    # The config of MiniMax-M3 has a separate value for them, for heads of 128 rows.
    report = related("minimax_m3_vl_text", rotary_dim=64)
    assert report.verdict.value == "homologous"
    assert any(module.role == "q" for module in report.modules)


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
    ("rests", "compared", "said"),
    [
        ({i: [UNKNOWN] for i in range(3)}, False, "The layers were not compared: no weight in 3 of 3 layers of "),
        ({0: [VALUE], 1: [UNKNOWN], 2: [UNKNOWN]}, True, "Most layers were not compared: no weight in 2 of 3 layers"),
    ],
)
def test_layers_without_a_role_are_inconclusive(tmp_path, rests, compared, said):
    report = strangers(tmp_path, rests)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)
    assert (report.layers is not None) is compared
    caveats = [caveat for caveat in report.caveats if caveat.startswith(said)]
    assert len(caveats) == 2  # one for each model
    assert "mixing.amount.weight' for one" in caveats[0]


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
    assert any("no role in common that stands for 3 of 3 layers" in caveat for caveat in report.caveats)
