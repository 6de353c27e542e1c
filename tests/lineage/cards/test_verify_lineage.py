"""Declared base models and measured ancestry, against the loopback Hub."""

import itertools
import json

import pytest
import torch
from safetensors.torch import save_file

from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import CardError, InputError, RepositoryNotFoundError
from mdir_hf.lineage.cards.verify_lineage import MOST_BASES, verify_lineage
from mdir_hf.lineage.policy import Condition, exit_status
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.report import SCHEMA
from tests.specimens import gaussian, write_model

V, N = 1200, 64


@pytest.fixture
def serve(loopback_hub, tmp_path):
    """Serve a named model with front matter; ``seed`` selects the family, and ``noise`` its member."""
    n_folders = itertools.count()

    def serve_model(repo, block="", *, seed=0, noise=None, adapter_of=None, **options):
        folder = tmp_path / f"m{next(n_folders)}"
        if adapter_of is None:
            rows = gaussian(V, N, seed)
            write_model(folder, rows if noise is None else rows + 0.2 * gaussian(V, N, 100 + noise))
        else:
            folder.mkdir()
            config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": adapter_of}
            (folder / "adapter_config.json").write_text(json.dumps(config))
            factors = {"lora_embedding_A": torch.ones(2, V), "lora_embedding_B": 0.001 * torch.ones(N, 2)}
            names = {f"base_model.model.model.embed_tokens.{name}": factor for name, factor in factors.items()}
            save_file(names, folder / "adapter_model.safetensors")
        if block:
            (folder / "README.md").write_text(f"---\n{block}\n---\n# T\n")
        return loopback_hub.add_repository(repo, folder, **options)

    return serve_model


def verify(repo, *, token=None, device="cpu", of_each=None, of_all=None):
    settings, listeners = Settings(device=device, max_bytes=of_each), Listeners(progress=False)
    reading = Reading(token=token)
    return verify_lineage(NamedModel(repo), reading=reading, settings=settings, listeners=listeners, max_bytes=of_all)


def test_a_true_declaration_is_set_beside_its_measurement(serve):
    serve("owner/base")
    commit = serve("me/tuned", "base_model: owner/base\nbase_model_relation: finetune", noise=1)
    check = verify("me/tuned")
    (one,) = check.bases
    assert (one.base, one.outcome) == ("owner/base", "homologous")
    assert (one.report.reference.repo, one.report.candidate.commit) == ("owner/base", commit)
    said = str(check)
    assert said.splitlines()[0] == f"me/tuned [{commit[:8]}]"
    assert "declared: finetune of owner/base (README.md); measured: shared weight ancestry, p ≤ 10⁻" in said
    assert check.cycle is None


def test_a_folder_of_the_bases_name_beside_a_local_model_is_suggested(loopback_hub, tmp_path):
    write_model(tmp_path / "demo" / "base", gaussian(V, N, 0))
    folder = write_model(tmp_path / "demo" / "tuned", gaussian(V, N, 0))
    (folder / "README.md").write_text("---\nbase_model: demo/base\n---\n# T\n")
    (one,) = verify(str(folder)).bases
    assert one.outcome == "not_measured"  # the Hub has no such model
    assert f"mdir-hf compare {tmp_path / 'demo' / 'base'} {folder}" in one.why_not


@pytest.mark.parametrize(("of_each", "of_all"), [(1000, 10**9), (10**9, 1000)])
def test_the_smaller_cap_on_bytes_holds(serve, of_each, of_all):
    serve("owner/base")
    serve("me/tuned", "base_model: owner/base", noise=1)
    (one,) = verify("me/tuned", of_each=of_each, of_all=of_all).bases
    assert one.outcome == "not_measured" and "limit on bytes" in one.why_not


def test_a_stranger_and_a_relative_among_several_bases(serve):
    serve("owner/base")
    serve("owner/stranger", seed=7)
    serve("me/merge", "base_model:\n- owner/stranger\n- owner/base\nbase_model_relation: merge", noise=1)
    check = verify("me/merge")
    assert [(one.base, one.outcome) for one in check.bases] == [
        ("owner/stranger", "no_evidence"),
        ("owner/base", "homologous"),
    ]
    assert "measured: no evidence of shared weight ancestry found" in str(check)


def test_the_text_contains_no_accusation(serve):
    serve("owner/stranger", seed=7)
    serve("me/tuned", "base_model: owner/stranger", noise=1)
    said = str(verify("me/tuned")).lower()
    for word in ("false", "wrong", "lie", "contradict", "copied", "not a finetune", "unrelated"):
        assert word not in said


@pytest.mark.parametrize("base", ["Me/Tuned", "me/former"])
def test_a_model_that_declares_itself_is_not_compared(serve, loopback_hub, base):
    serve("me/tuned", f"base_model: {base}")
    loopback_hub._renamed = {"me/former": "me/tuned"}
    check = verify("me/tuned")
    assert check.bases[0].outcome == "own_base" and "itself" in check.bases[0].why_not
    assert check.failures() == () and exit_status(check.failures({Condition.BASES})) == 3


def test_an_adapter_shares_the_weights_of_its_base(serve, loopback_hub):
    serve("owner/base")
    serve("me/adapter", "base_model: owner/base\nbase_model_relation: adapter", adapter_of="owner/base")
    check = verify("me/adapter")
    assert [one.outcome for one in check.bases] == ["by_construction"]
    assert "adapter: its config names this base, and its tensors fit it" in str(check)
    assert check.failures(frozenset(Condition)) == ()


def test_an_adapter_that_does_not_fit_its_base_is_not_confirmed(serve, loopback_hub, tmp_path):
    serve("owner/base")
    write_model(tmp_path / "wide", gaussian(V, 2 * N, 3))
    loopback_hub.add_repository("owner/wide", tmp_path / "wide")
    serve("me/adapter", "base_model: owner/wide\nbase_model_relation: adapter", adapter_of="owner/wide")
    check = verify("me/adapter")
    assert [one.outcome for one in check.bases] == ["not_measured"]
    assert exit_status(check.failures(frozenset(Condition))) == 3


def test_an_adapter_on_another_model_than_it_declares_is_measured(serve):
    serve("owner/base")
    serve("owner/tuned", noise=1)
    serve("owner/stranger", seed=7)
    for declared, outcome in (("owner/base", "homologous"), ("owner/stranger", "no_evidence")):
        serve("me/adapter", f"base_model: {declared}", adapter_of="owner/tuned")
        assert verify("me/adapter").bases[0].outcome == outcome


@pytest.mark.parametrize("declared", ["owner/base", "owner/stranger"])
def test_an_adapter_under_the_card_of_another_model_is_contradicted(serve, declared):
    serve("owner/base")
    serve("owner/tuned", noise=1)
    serve("owner/stranger", seed=7)
    card = f"base_model: {declared}\nbase_model_relation: adapter"
    serve("me/adapter", card, adapter_of="owner/tuned")
    check = verify("me/adapter")
    assert "adapter: contradicted: the adapter's config names owner/tuned" in str(check)
    assert exit_status(check.failures()) == 3
    serve("me/merged", card, noise=1)
    assert ("adapter: cannot tell" in str(verify("me/merged"))) is (declared == "owner/base")


def test_an_adapter_as_base_means_the_merged_model(serve):
    serve("owner/base")
    serve("owner/adapter", adapter_of="owner/base")
    serve("me/merged", "base_model: owner/adapter", noise=1)
    assert [(one.base, one.outcome) for one in verify("me/merged").bases] == [("owner/adapter", "homologous")]


def test_an_adapter_of_this_very_model_is_a_circle(serve):
    serve("owner/adapter", "base_model: me/model", adapter_of="me/model")
    serve("me/model", "base_model: owner/adapter")
    check = verify("me/model")
    assert check.cycle == ("me/model", "owner/adapter", "me/model")


def test_adapters_in_a_circle_end(serve):
    serve("a/one", "base_model: a/two", adapter_of="a/two")
    serve("a/two", "base_model: a/one", adapter_of="a/one")
    serve("me/model", "base_model: a/one")
    (one,) = verify("me/model").bases
    assert one.outcome == "not_measured" and "cycle" in one.why_not


@pytest.mark.parametrize("n_between", [0, 1, 3])
def test_a_circle_of_declarations_is_found(serve, n_between):
    names = ["me/model", *[f"a/m{i}" for i in range(n_between + 1)]]
    for i, name in enumerate(names):
        serve(name, f"base_model: [x/none, {names[(i + 1) % len(names)]}]", noise=i + 1)
    check = verify("me/model")
    assert check.cycle == (*names, "me/model")
    assert "lead in a circle" in str(check)


def test_a_circle_that_leaves_this_model_out_ends(serve, loopback_hub):
    serve("a/one", "base_model: a/two", noise=1)
    serve("a/two", "base_model: a/one", noise=2)
    serve("me/model", "base_model: a/one", noise=3)
    assert verify("me/model").cycle is None
    assert len(loopback_hub.sent(path="/api/models/a/two")) == 1  # one request each


def test_a_newer_version_is_mentioned_and_not_compared(serve):
    serve("me/model", "new_version: me/next")
    check = verify("me/model")
    assert check.bases == () and "newer version: me/next" in str(check)


def test_a_card_with_endless_bases_is_cut(serve, loopback_hub):
    serve("me/model", "base_model: [" + ", ".join(f"x/none{i}" for i in range(MOST_BASES + 40)) + "]")
    check = verify("me/model")
    assert len(check.bases) == MOST_BASES + 40
    assert "only the first" in check.bases[-1].why_not
    assert len({request.path for request in loopback_hub.sent(path="/api/models/x")}) <= MOST_BASES + 16


def test_a_base_is_looked_for_on_the_hub_only(serve, tmp_path, monkeypatch):
    serve("me/tuned", "base_model: owner/base", noise=1)
    write_model(tmp_path / "cwd" / "owner" / "base", gaussian(V, N, 0))
    monkeypatch.chdir(tmp_path / "cwd")
    assert verify("me/tuned").bases[0].outcome == "not_measured"


def test_errors_of_the_model_itself_are_raised(serve):
    with pytest.raises(RepositoryNotFoundError):
        verify("me/none")
    serve("me/hostile", "a: &a [*a]")
    with pytest.raises(CardError):
        verify("me/hostile")
    serve("me/tuned", "base_model: me/tuned2", noise=1)
    serve("me/tuned2")
    with pytest.raises(InputError, match="device"):
        verify("me/tuned", device="nonsense")


def test_the_json_of_a_lineage_is_complete(serve):
    serve("owner/base")
    serve("me/tuned", "base_model: [owner/base, owner/none]", noise=1)
    body = json.loads(json.dumps(verify("me/tuned").to_dict()))
    assert body["schema"] == "mdir-hf/lineage/1"
    assert body["declared"]["base_models"] == ["owner/base", "owner/none"]
    assert [one["outcome"] for one in body["bases"]] == ["homologous", "not_measured"]
    assert body["bases"][0]["report"]["schema"] == SCHEMA and body["bases"][1]["report"] is None
    assert body["cycle"] is None
