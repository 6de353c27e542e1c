"""Fingerprints are stored exactly and compared like models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mdir_hf.comparison.keys import SampledHeads
from mdir_hf.errors import CorruptCheckpointError, VocabularyError
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, take_fingerprint
from mdir_hf.lineage.survey.sample import choose_tokens
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from tests.specimens import gaussian, tokens, write_model

V, N = 1500, 96


def opened(folder) -> Model:
    return Model(open_repository(folder))


@pytest.fixture
def family(tmp_path):
    base = gaussian(V, N, 0)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5))
    shuffled_ids = torch.randperm(V, generator=torch.Generator().manual_seed(6))
    words = tokens(V)
    return {
        "base": opened(write_model(tmp_path / "base", base)),
        "tuned": opened(write_model(tmp_path / "tuned", base + 0.2 * gaussian(V, N, 1))),
        "permuted": opened(write_model(tmp_path / "permuted", base[:, order])),
        # The same model under another tokenizer, which has the same words at other rows.
        "renumbered": opened(
            write_model(
                tmp_path / "renumbered",
                base[shuffled_ids] + 0.1 * gaussian(V, N, 3),
                words=[words[i] for i in shuffled_ids.tolist()],
            )
        ),
        "stranger": opened(write_model(tmp_path / "stranger", gaussian(V, N, 2))),
    }


@pytest.fixture
def prints(family):
    sample = choose_tokens([model.vocabulary for model in family.values()], 512)
    return {name: take_fingerprint(model, sample) for name, model in family.items()}


def test_a_fingerprint_survives_its_file(prints, tmp_path):
    path = tmp_path / "base.safetensors"
    path.write_bytes(prints["base"].to_bytes())
    loaded = Fingerprint.load(path)
    assert (loaded.model, loaded.tokens, loaded.bytes_of_weights) == (
        prints["base"].model,
        prints["base"].tokens,
        prints["base"].bytes_of_weights,
    )
    assert torch.equal(loaded.rows, prints["base"].rows)
    assert torch.equal(loaded.neurons.rows, prints["base"].neurons.rows)


def test_prints_of_heads_survive_their_file(prints, tmp_path):
    heads = SampledHeads((4, 8), torch.randn(6, 40).half())
    path = tmp_path / "base.safetensors"
    path.write_bytes(replace(prints["base"], heads=heads).to_bytes())
    loaded = Fingerprint.load(path).heads
    assert loaded.shape == heads.shape and torch.equal(loaded.prints, heads.prints)
    for wrong in (torch.full((6, 40), torch.nan), torch.zeros(6)):
        path.write_bytes(replace(prints["base"], heads=SampledHeads((4, 8), wrong)).to_bytes())
        with pytest.raises(CorruptCheckpointError, match="prints of heads"):
            Fingerprint.load(path)


@pytest.mark.parametrize("damage", ["cut", "other", "missing"])
def test_a_damaged_file_is_named(prints, tmp_path, damage):
    path = tmp_path / "x.safetensors"
    if damage == "cut":
        path.write_bytes(prints["base"].to_bytes()[:-1])
    elif damage == "other":
        path.write_bytes(b"{}" * 100)
    with pytest.raises(CorruptCheckpointError, match=r"x\.safetensors: this is not a fingerprint"):
        Fingerprint.load(path)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("model", '{"repo": 5}', "its repo is 5"),
        ("model", '{"repo": "a/b"}', "it has no"),
        ("tokens", "[5]", "its item 0 is 5"),
        ("bytes_of_weights", "-1", "greater than or equal to 0"),
        ("digests", "[]", "it should be an object"),
        ("notes", "{}", "it should be a valid array"),
        ("notes", "[" * 100_000, "recursion"),
    ],
)
def test_forged_metadata_are_refused(prints, tmp_path, name, value, said):
    content = prints["base"].to_bytes()
    (tmp_path / "own").write_bytes(content)
    with safe_open(tmp_path / "own", framework="pt") as file:
        save_file({"rows": file.get_tensor("rows")}, tmp_path / "x", metadata=file.metadata() | {name: value})
    with pytest.raises(CorruptCheckpointError, match=f"this is not a fingerprint: .*{said}") as caught:
        Fingerprint.load(tmp_path / "x")
    assert str(caught.value).count(str(tmp_path)) == 1


def test_a_model_without_tokenizer_is_refused(tmp_path):
    model = opened(write_model(tmp_path / "bare", gaussian(V, N, 0), words=[]))
    with pytest.raises(VocabularyError, match="no tokenizer files"):
        take_fingerprint(model, [b"w1"])
