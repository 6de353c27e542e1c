"""A hidden model, aligned: equal to its base to rounding, with the logits it had; and back again."""

import pytest
import torch

from mdir_hf.reconstruction.write import write_model
from tests.method.obfuscation import new_model, obfuscate
from tests.reconstruction.models import aligned, largest_difference, loaded, logits, opened, saved


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """A base, the same hidden in all known ways, and that aligned with the base."""
    folder = tmp_path_factory.mktemp("hidden")
    base = new_model("llama")
    made, secrets = obfuscate(base)
    saved(base, folder / "base")
    saved(made, folder / "hidden", epsilon=made.model.norm.variance_epsilon)
    found, written = aligned(folder / "base", folder / "hidden", folder / "aligned")
    return folder, secrets, found, written


def test_aligned_weights_equal_the_base(hidden):
    folder, *_ = hidden
    assert largest_difference(folder / "aligned", folder / "base") < 1e-9


def test_aligned_model_computes_the_same_logits(hidden):
    folder, *_ = hidden
    before, after = logits(loaded(folder / "hidden")), logits(loaded(folder / "aligned"))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)  # norms are computed in float32


def test_reconstruction_finds_what_was_done(hidden):
    _, secrets, found, _ = hidden
    assert found.stream.outer.kind == "rotation"
    torch.testing.assert_close(found.stream.outer.matrix, secrets.rotation)
    assert found.stream.scale == pytest.approx(3.0)
    for at, layer in enumerate(found.layers):
        kv, queries, neurons = (each[at].numpy() for each in (secrets.kv_heads, secrets.q_heads, secrets.neurons))
        assert layer.reference == at
        assert (kv[layer.attention.kv_candidate] == layer.attention.kv_reference).all()
        assert (queries[layer.attention.q_candidate] == layer.attention.q_reference).all()
        assert (neurons[layer.mlp.neurons.candidate] == layer.mlp.neurons.reference).all()
        assert (layer.attention.values.kind, layer.attention.keys.kind) == ("matrices", "scaled_turns")
        assert max(layer.residuals.values()) < 1e-9


def test_every_tensor_is_explained_by_the_base(hidden):
    *_, written = hidden
    shares = {each.name: each.share for each in written.explained}
    assert len(shares) == 3 + 3 * 9
    assert all(share > 1 - 1e-12 for name, share in shares.items() if "norm" not in name)


def test_the_inverse_brings_the_hidden_model_back(hidden, tmp_path):
    folder, _, found, _ = hidden
    write_model(opened(folder / "aligned"), found, tmp_path / "back", is_inverse=True)
    assert largest_difference(tmp_path / "back", folder / "hidden") < 1e-8
    assert loaded(tmp_path / "back").config.rms_norm_eps == pytest.approx(loaded(folder / "hidden").config.rms_norm_eps)
