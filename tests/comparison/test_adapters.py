"""PEFT adapters end to end: resolved to their base, reported as adapters, and unable to reach local files."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf import HomologyChecker
from mdir_hf.cli import main
from mdir_hf.errors import (
    GatedRepositoryError,
    OfflineError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    UnsupportedFormatError,
)
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from tests.specimens import gaussian, mlp_tensors, write_model

V, N, R = 1200, 64, 4


def write_adapter(folder, base, *, scale=0.02, seed=5, tensors=None, **config):
    """A LoRA adapter on the embedding, and on a projection of the first layer."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return scale * torch.randn(shape, generator=rng)

    folder.mkdir(parents=True)
    whole = {"peft_type": "LORA", "r": R, "lora_alpha": 8, "base_model_name_or_path": base, **config}
    (folder / "adapter_config.json").write_text(json.dumps(whole))
    embed, q = "base_model.model.model.embed_tokens", "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {
        f"{embed}.lora_embedding_A": normal(R, V),
        f"{embed}.lora_embedding_B": normal(N, R),
        f"{q}.lora_A.weight": normal(R, N),
        f"{q}.lora_B.weight": normal(N, R),
    }
    save_file(factors if tensors is None else tensors, folder / "adapter_model.safetensors")
    return folder


def write_base(folder, seed=0):
    layer = {"model.layers.0.self_attn.q_proj.weight": gaussian(N, N, seed + 100), **mlp_tensors(N, 256, seed + 200)}
    return write_model(folder, gaussian(V, N, seed), further=layer, dtype=torch.float32)


@pytest.fixture
def base(tmp_path):
    return write_base(tmp_path / "base")


@pytest.fixture
def hub(loopback_hub, base):
    """A Hub with ``some/base``."""
    loopback_hub.add_repository("some/base", base)
    return loopback_hub


def serve(hub, tmp_path, repo, base, **options):
    folder = write_adapter(tmp_path / repo.replace("/", "-"), base, **options)
    hub.add_repository(repo, folder)
    return folder


def refused(capsys, *arguments):
    assert main(["compare", *arguments, "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("mdir-hf: error: ")
    return err


def test_an_adapter_is_its_base_and_the_difference(hub, tmp_path, base):
    folder = serve(hub, tmp_path, "some/adapter", "some/base")
    model = Model(open_repository("some/adapter"))
    factors = load_file(folder / "adapter_model.safetensors")
    a, b = (factors[f"base_model.model.model.embed_tokens.lora_embedding_{x}"] for x in "AB")
    expected = load_file(base / "model.safetensors")["model.embed_tokens.weight"] + 8 / R * (b @ a).T
    rows = np.array([7, 1199, 0], dtype=np.int64)
    got = model.tensors.read_rows("model.embed_tokens.weight", rows)
    torch.testing.assert_close(got, expected[torch.from_numpy(rows)])
    assert (model.n_rows, model.width) == (V, N)
    assert model.anatomy.architecture == "llama"


def test_an_adapter_is_homologous_to_its_base(hub, tmp_path):
    serve(hub, tmp_path, "some/adapter", "some/base")
    checker = HomologyChecker.from_pretrained("some/base")
    report = checker.compare("some/adapter")
    assert report.verdict.value == "homologous"
    adapter, base = (f"some/{name}@{open_repository(f'some/{name}').commit[:7]}" for name in ("adapter", "base"))
    note = f"{adapter}: an adapter (LoRA) on {base}; W = W_base + (alpha / r) B A for 2 modules."
    assert note in report.caveats
    assert "an adapter (LoRA) on" in " ".join(report.details.split())
    assert report.candidate.repo == "some/adapter"
    stranger = write_base(tmp_path / "stranger", seed=7)
    assert checker.compare(stranger).verdict.value == "no_evidence"
    # Both models have the same base weight file. The caveat says so, and that p ignores it.
    assert "1 weight file is byte-for-byte identical in both models; the p-value ignores this." in report.caveats


def test_equal_files_make_equal_weights_only_with_an_equal_recipe(hub, tmp_path):
    serve(hub, tmp_path, "some/adapter", "some/base")
    serve(hub, tmp_path, "other/copy", "some/base", inference_mode=True)
    serve(hub, tmp_path, "other/stronger", "some/base", lora_alpha=16)
    serve(hub, tmp_path, "other/trained", "some/base", seed=6)
    other = write_base(tmp_path / "elsewhere", seed=3)
    hub.add_repository("other/base", other)
    serve(hub, tmp_path, "other/based", "other/base")
    names = ["some/base", "some/adapter", "other/copy", "other/stronger", "other/trained", "other/based"]
    digests = {name: Model(open_repository(name)).digests() for name in names}
    values = {name: set(found.values()) for name, found in digests.items()}
    assert values["some/adapter"] == values["other/copy"]
    assert [name for name, found in values.items() if found == values["some/adapter"]] == ["some/adapter", "other/copy"]
    report = HomologyChecker.from_pretrained("some/adapter").compare("other/copy")
    assert report.settled_by == "identical_files"
    assert any("an adapter (LoRA)" in caveat for caveat in report.caveats)
    assert HomologyChecker.from_pretrained("some/base").compare("some/adapter").settled_by == "near"


def test_prompt_tuning_is_its_base(hub, tmp_path):
    prompt = {"prompt_embeddings": torch.ones(3, N)}
    serve(hub, tmp_path, "some/prompt", "some/base", peft_type="PROMPT_TUNING", tensors=prompt)
    report = HomologyChecker.from_pretrained("some/base").compare("some/prompt")
    assert report.settled_by == "identical_files"
    assert any("leaves the weights unchanged" in caveat for caveat in report.caveats)


def test_the_revision_of_the_base_is_followed(hub, tmp_path, base):
    other = write_base(tmp_path / "old", seed=9)
    hub.add_repository("some/versioned", base, revisions={"v1": other})
    serve(hub, tmp_path, "some/adapter", "some/versioned", revision="v1", tensors={})
    rows = np.array([5], dtype=np.int64)
    got = Model(open_repository("some/adapter")).tensors.read_rows("model.embed_tokens.weight", rows)
    assert torch.equal(got, gaussian(V, N, 9)[5:6])


def test_an_adapter_on_an_adapter_adds_both(hub, tmp_path, base):
    serve(hub, tmp_path, "some/first", "some/base")
    serve(hub, tmp_path, "some/second", "some/first", seed=6)
    models = [Model(open_repository(name)).tensors for name in ("some/base", "some/first", "some/second")]
    zero, one, two = (tensors.read("model.layers.0.self_attn.q_proj.weight") for tensors in models)
    assert not torch.equal(zero, one) and not torch.equal(one, two)
    factors = load_file(tmp_path / "some-second" / "adapter_model.safetensors")
    a, b = (factors[f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight"] for x in "AB")
    torch.testing.assert_close(two - one, 2 * b @ a, atol=1e-7, rtol=1e-4)
    assert len(models[2].description.notes) == 2


def test_circular_adapters_are_refused(hub, tmp_path, capsys):
    serve(hub, tmp_path, "some/one", "some/two")
    serve(hub, tmp_path, "some/two", "some/one")
    serve(hub, tmp_path, "some/itself", "some/itself")
    assert "the adapters form a cycle: some/one@" in refused(capsys, "some/base", "some/one")
    assert "the adapters form a cycle: some/itself@" in refused(capsys, "some/base", "some/itself")


def test_too_many_stacked_adapters_are_refused(hub, tmp_path, capsys):
    for n in range(8):
        serve(hub, tmp_path, f"some/a{n}", f"some/a{n + 1}")
    assert "more than 4 adapters are stacked" in refused(capsys, "some/base", "some/a0")


def test_a_base_that_is_missing_or_gated_or_has_no_such_revision_is_reported(hub, tmp_path, base, monkeypatch):
    hub.add_repository("some/gated", base, gated=True)
    cases = {
        "some/nothing": RepositoryNotFoundError,
        "some/gated": (GatedRepositoryError, RepositoryNotFoundError),
        "some/base@v9": RevisionNotFoundError,
    }
    for number, (name, error) in enumerate(cases.items()):
        adapter = f"some/on{number}"
        serve(hub, tmp_path, adapter, name)
        with pytest.raises(error, match=rf"needed as the base of the adapter {adapter}@") as caught:
            Model(open_repository(adapter))
        assert name.partition("@")[0] in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert Model(open_repository("some/on1")).n_rows == V


def test_an_adapters_base_is_read_with_the_same_token(hub, tmp_path, base):
    hub.add_repository("some/gated", base, gated=True)
    serve(hub, tmp_path, "some/adapter", "some/gated")
    checker = HomologyChecker.from_pretrained("some/adapter", token=hub.token, use_caches=False)
    assert checker.compare("some/base").verdict.value == "homologous"
    assert not (tmp_path / "hf-home" / "hub").exists()
    assert not [request for request in hub.sent("cdn") if request.had_token]


def test_a_missing_base_is_reported_offline(hub, tmp_path, monkeypatch):
    serve(hub, tmp_path, "some/adapter", "some/base")
    from huggingface_hub import snapshot_download

    snapshot_download("some/adapter", endpoint=hub.endpoint)
    with pytest.raises(OfflineError, match="needed as the base of the adapter some/adapter@"):
        HomologyChecker.from_pretrained("some/adapter", local_files_only=True)
    snapshot_download("some/base", endpoint=hub.endpoint)
    checker = HomologyChecker.from_pretrained("some/adapter", local_files_only=True)
    assert checker.compare("some/base").verdict.value == "homologous"


@pytest.mark.parametrize("spelling", ["absolute", "relative", "home", "parent", "as a repository", "file address"])
def test_a_path_in_an_adapter_from_the_hub_is_never_opened(hub, tmp_path, base, monkeypatch, capsys, spelling):
    """The folder exists and would be a valid base; it must not even be opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "private").mkdir()
    shutil.copytree(base, tmp_path / "private" / "model")
    path = {
        "absolute": str(tmp_path / "private" / "model"),
        "relative": "./private/model",
        "home": "~/private/model",
        "parent": "private/../private/model",
        "as a repository": "private/model",
        "file address": f"file://{tmp_path}/private/model",
    }[spelling]
    serve(hub, tmp_path, "some/adapter", path)
    said = refused(capsys, "some/base", "some/adapter")
    assert "some/adapter@" in said
    assert "never opened" in said or "private/model" in said
    read = [name for name in HomologyChecker.from_pretrained("some/base")._ledger.files if "private" in name]
    assert read == []


def test_an_adapter_downloaded_from_the_hub_is_not_trusted(hub, tmp_path, base):
    from huggingface_hub import snapshot_download

    serve(hub, tmp_path, "some/adapter", str(base))
    folder = snapshot_download("some/adapter", endpoint=hub.endpoint)
    with pytest.raises(UnsupportedFormatError, match="a path in an adapter from the Hub is never opened"):
        Model(open_repository(folder))


def test_a_local_adapter_may_name_a_folder(tmp_path, base, hf_home):
    mine = write_adapter(tmp_path / "mine", str(base))
    report = HomologyChecker.from_pretrained(base).compare(mine)
    assert report.verdict.value == "homologous"
    assert any(f"an adapter (LoRA) on {base}" in caveat for caveat in report.caveats)


def test_an_adapter_on_a_folder_that_is_gone_says_what_to_do(tmp_path, base, hf_home, capsys):
    mine = write_adapter(tmp_path / "mine", str(tmp_path / "gone"))
    said = refused(capsys, str(base), str(mine))
    assert "gone" in said and "compare a merged copy" in said


@pytest.mark.parametrize(
    "name", [None, "", "datasets/some/base", "https://example.org/x/y", "x" * 3000, "\0", "a/b/c/d", "some/base/c/d"]
)
def test_a_base_that_is_not_a_model_is_reported(hub, tmp_path, capsys, name):
    serve(hub, tmp_path, "some/adapter", name)
    said = refused(capsys, "some/base", "some/adapter")
    assert "some/adapter@" in said and "merged copy" in said
    assert len(said) < 1500


def test_the_file_of_an_adapter_names_the_adapter(tmp_path, base, hf_home):
    mine = write_adapter(tmp_path / "mine", str(base))
    report = HomologyChecker.from_pretrained(base).compare(mine / "adapter_model.safetensors")
    assert report.verdict.value == "homologous"
