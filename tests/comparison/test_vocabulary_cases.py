"""Models whose vocabularies hold the same tokens under different ids are compared token by token."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
import torch

from mdir_hf import HomologyChecker, Reason, Verdict
from mdir_hf.errors import VocabularyError
from tests.gguf_writer import gguf_bytes
from tests.specimens import gaussian, sentencepiece_bytes, write_model

N = 64
REAL_DATA = os.environ.get("MDIR_HF_REAL_DATA")
needs_real_data = pytest.mark.skipif(not REAL_DATA, reason="set MDIR_HF_REAL_DATA to the folder of real tokenizers")


def model(folder: Path, rows: torch.Tensor, tokenizer: dict[str, bytes]) -> Path:
    write_model(folder, rows, words=[], has_layer=False)
    for name, data in tokenizer.items():
        (folder / name).write_bytes(data)
    return folder


def compared(reference: Path, candidate: Path, **options):
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False, **options)


def moved(rows: torch.Tensor, new_row_of: dict[int, int], n_rows: int) -> torch.Tensor:
    """Move the rows of a relative to other ids; the remaining rows of its embedding are new."""
    out = gaussian(n_rows, N, 7)
    for old, new in new_row_of.items():
        out[new] = rows[old]
    return out + 0.3 * gaussian(n_rows, N, 8)


def check(tmp_path, rows, tokenizer, new_row_of, n_rows, new_tokenizer, *, keeps_ids: bool, n_common: int):
    """Check that copied rows with other ids are found, and that the same rows under their old ids are not."""
    reference = model(tmp_path / "reference", rows, tokenizer)
    report = compared(reference, model(tmp_path / "relative", moved(rows, new_row_of, n_rows), new_tokenizer))
    assert report.reason is Reason.EMBEDDINGS_ONLY
    assert report.embedding.common_tokens == n_common
    assert report.embedding.transformation == "identity"
    assert report.embedding.normalized_trace > 0.9
    stranger = model(tmp_path / "stranger", gaussian(n_rows, N, 9), new_tokenizer)
    assert compared(reference, stranger).verdict is Verdict.NO_EVIDENCE
    if not keeps_ids:
        by_number = torch.cat([rows, gaussian(n_rows - len(rows), N, 3)])
        assert compared(reference, model(tmp_path / "by-number", by_number, new_tokenizer)).verdict is (
            Verdict.NO_EVIDENCE
        )


def byte_level(words: list[str]) -> dict[str, bytes]:
    return {"vocab.json": json.dumps({word: row for row, word in enumerate(words)}).encode(), "merges.txt": b""}


def words(n: int) -> list[str]:
    return [f"Ġw{number}" for number in range(n)]


@pytest.mark.slow
@needs_real_data
def test_gpt_2_and_its_ids_in_the_order_of_opt(tmp_path):
    folder = Path(REAL_DATA) / "tokenizers" / "gpt2"
    ids = json.loads((folder / "vocab.json").read_text())
    # OPT counts the tokens of GPT-2 by frequency, after four tokens of its own; any fixed order shows the same.
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(5)).tolist()
    opt = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3} | {token: order[row] + 4 for token, row in ids.items()}
    new_row_of = {row: order[row] + 4 for token, row in ids.items()}
    check(
        tmp_path,
        gaussian(len(ids), N, 0),
        {"vocab.json": (folder / "vocab.json").read_bytes()},
        new_row_of,
        len(opt),
        {"vocab.json": json.dumps(opt).encode()},
        keeps_ids=False,
        n_common=50256,
    )


@pytest.mark.slow
@needs_real_data
def test_mistral_v1_and_v3(tmp_path):
    folder = Path(REAL_DATA) / "tokenizers" / "mistral"
    v1, v3 = (folder / name for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"))
    check(
        tmp_path,
        gaussian(32000, N, 0),
        {"tokenizer.model": v1.read_bytes()},
        {row: row + 768 for row in range(3, 32000)},
        32768,
        {"tokenizer.model.v3": v3.read_bytes()},
        keeps_ids=False,
        n_common=31872,
    )


@pytest.mark.slow
@needs_real_data
def test_cl100k_is_part_of_llama_3(tmp_path):
    ranks = (Path(REAL_DATA) / "tokenizers" / "openai" / "cl100k_base.tiktoken").read_bytes()
    n = ranks.count(b"\n")
    # Llama-3's tokenizer.model has the ranks of cl100k, then 28,000 of its own.
    own = b"".join(base64.b64encode(b" llama%d" % number) + b" %d\n" % (n + number) for number in range(28_000))
    check(
        tmp_path,
        gaussian(n, N, 0),
        {"cl100k_base.tiktoken": ranks},
        {row: row for row in range(n)},
        n + 28_000 + 256,
        {"tokenizer.model": ranks + own},
        keeps_ids=True,
        n_common=n,
    )


@pytest.fixture
def without_tokenizer(tmp_path):
    """A model, a relative with reversed ids and no tokenizer, and a third model that has the relative's tokenizer."""
    n = 900
    rows = gaussian(n, N, 0)
    reference = model(tmp_path / "reference", rows, byte_level(words(n)))
    turned = {row: n - 1 - row for row in range(n)}
    relative = model(tmp_path / "relative", moved(rows, turned, n), {})
    other = model(tmp_path / "other", gaussian(n, N, 5), byte_level(words(n)[::-1]))
    return reference, relative, other


def test_a_model_without_tokenizer_is_found_with_the_tokenizer_of_another(without_tokenizer):
    reference, relative, other = without_tokenizer
    report = compared(reference, relative)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert any("paired by number" in caveat for caveat in report.caveats)
    report = compared(reference, relative, tokenizer=other)
    assert report.reason is Reason.EMBEDDINGS_ONLY
    assert f"The vocabulary of {relative} was read from {other}, as requested." in report.caveats


def test_the_reference_may_lack_its_tokenizer_too(without_tokenizer):
    reference, relative, other = without_tokenizer
    checker = HomologyChecker.from_pretrained(relative, tokenizer=other)
    report = checker.compare(reference, progress=False)
    assert report.reason is Reason.EMBEDDINGS_ONLY
    assert report.embedding.common_tokens == 900


def test_a_named_tokenizer_overrides_the_tokenizer_of_the_model(without_tokenizer, tmp_path):
    reference, _, other = without_tokenizer
    tokens = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": words(900)}
    (tmp_path / "gguf").mkdir()
    embedding = moved(gaussian(900, N, 0), {row: 899 - row for row in range(900)}, 900)
    (tmp_path / "gguf" / "m.gguf").write_bytes(gguf_bytes({"token_embd.weight": embedding}, tokens))
    assert compared(reference, tmp_path / "gguf").verdict is Verdict.NO_EVIDENCE
    assert compared(reference, tmp_path / "gguf", tokenizer=other).reason is Reason.EMBEDDINGS_ONLY


def test_a_tokenizer_that_is_named_and_not_there_is_an_error(without_tokenizer, tmp_path):
    reference, relative, _ = without_tokenizer
    (tmp_path / "empty").mkdir()
    with pytest.raises(VocabularyError, match=r"empty: expected tokenizer\.json, vocab\.json"):
        compared(reference, relative, tokenizer=tmp_path / "empty")


@pytest.mark.parametrize("name", ["XLMRoberta", "Camembert", "Pegasus"])
def test_two_files_of_one_tokenizer_are_paired_by_token(tmp_path, name):
    n, offset = 900, {"XLMRoberta": 1, "Camembert": 4, "Pegasus": 103}[name]
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((f"▁w{row}", 1) for row in range(n))]
    rows = gaussian(n + 3 + offset, N, 0)
    config = json.dumps({"tokenizer_class": f"{name}Tokenizer"}).encode()
    slow = {"spiece.model": sentencepiece_bytes(pieces), "tokenizer_config.json": config}
    vocab = {f"▁w{row}": row + 3 + offset for row in range(n)}
    fast = {"tokenizer.json": json.dumps({"model": {"vocab": vocab}}).encode()}
    reference = model(tmp_path / "slow", rows, slow)
    report = compared(reference, model(tmp_path / "fast", rows + 0.01 * gaussian(len(rows), N, 1), fast))
    assert report.reason is Reason.EMBEDDINGS_ONLY
    assert report.embedding.common_tokens == n


def test_a_stale_tokenizer_file_is_noted(tmp_path):
    n = 900
    rows = gaussian(n, N, 0)
    reference = model(tmp_path / "reference", rows, byte_level(words(n)))
    turned = {word: n - 1 - row for row, word in enumerate(words(n))}
    stale = {"tokenizer.json": json.dumps({"model": {"vocab": turned}}).encode(), **byte_level(words(n))}
    report = compared(reference, model(tmp_path / "relative", rows, stale))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert any("give different rows to 900 of 900 tokens" in caveat for caveat in report.caveats)
