"""Select one of several quantisations in a repository by a name after a colon, or the widest by default."""

import pytest
import torch

from mdir_hf import HomologyChecker
from mdir_hf.comparison.inspection import inspect_model
from mdir_hf.errors import InputError, NoWeightsError
from mdir_hf.model.hub.repository import resolve_model
from mdir_hf.model.open import NamedModel
from tests.gguf_writer import gguf_bytes
from tests.specimens import gaussian, tokens

V, N = 600, 64


@pytest.fixture
def quantised(loopback_hub, tmp_path):
    """``owner/name`` with one model in F32 and F16; the F16 file is a rounding of the F32 file."""
    folder = tmp_path / "quantised"
    folder.mkdir()
    rows = gaussian(V, N, 0)
    keys = {
        "llama.embedding_length": N,
        "llama.block_count": 0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens(V),
    }
    for kind, dtype in (("F16", torch.float16), ("F32", torch.float32)):
        (folder / f"model-{kind}.gguf").write_bytes(gguf_bytes({"token_embd.weight": rows.to(dtype)}, keys))
    loopback_hub.add_repository("owner/name", folder)
    return loopback_hub


def test_the_widest_quantisation_is_the_default(quantised):
    report = HomologyChecker.from_pretrained("owner/name").compare("owner/name:F16")
    (note,) = [note for note in report.caveats if "widest" in note]
    assert "the repository holds 2 quantisations, and the widest was read, model-F32.gguf" in note
    assert "owner/name:F16" in note


def test_the_pinned_name_contains_the_quantisation(quantised):
    pinned = resolve_model("owner/name:F16").pinned
    assert pinned.endswith(":F16")
    assert resolve_model(pinned).pinned == pinned
    assert inspect_model(pinned).embedding.dtype == "F16"


def test_a_missing_quantisation_is_reported_and_two_contradict(quantised):
    with pytest.raises(NoWeightsError, match="variant 'Q2_K'"):
        inspect_model("owner/name:Q2_K")
    with pytest.raises(InputError, match="the name selects 'F16' after the colon, but the variant is 'F32'"):
        inspect_model(NamedModel("owner/name:F16", variant="F32"))
