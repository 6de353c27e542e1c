"""Real tokenizer files, checked against published counts and against the libraries that define the formats."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders

from mdir_hf.model.files.gguf.header import read_gguf_header
from mdir_hf.model.hub.local import LocalFile
from mdir_hf.model.tokens import Vocabulary, common_vocabulary, gguf_vocabulary, read_vocabulary
from mdir_hf.model.tokens.sentencepiece_model import sentencepiece_tokens
from mdir_hf.model.tokens.tokens import TokenType

pytestmark = pytest.mark.slow

FOLDERS = ["bert-base-uncased", "falcon", "gpt-neox-20b", "gpt2", "llama2", "phi-3-mini", "qwen2", "t5-small"]
FILES = [
    "mistral/mistral_instruct_tokenizer_240323.model.v3",
    "mistral/tokenizer.model.v1",
    "openai/cl100k_base.tiktoken",
    "rwkv-world/rwkv_vocab_v20230424.txt",
    "whisper/multilingual.tiktoken",
]
GGUF = ["gguf:gpt-neox", "gguf:llama-spm", "gguf:phi-3", "gguf:starcoder"]
NAMES = [*FOLDERS, *FILES, *GGUF]
PAIRS = [(a, b) for a in sorted(NAMES) for b in sorted(NAMES) if a < b]
# Rows such as [PAD50277], which the published counts treat as text; no other vocabulary has them.
N_PADDING = {"gguf:gpt-neox": 155}

V1, V3 = "mistral/tokenizer.model.v1", "mistral/mistral_instruct_tokenizer_240323.model.v3"


@pytest.fixture(scope="module")
def vocabularies(real_data: Path) -> dict[str, Vocabulary]:
    def read(name: str) -> Vocabulary:
        if name in GGUF:
            path = real_data / "tokenizers" / "gguf" / f"ggml-vocab-{name.removeprefix('gguf:')}.gguf"
            vocabulary = gguf_vocabulary(read_gguf_header(LocalFile(path), path=name).metadata, file=name)
            assert vocabulary is not None
            return vocabulary
        path = real_data / "tokenizers" / name
        folder, names = (
            (path, [file.name for file in path.iterdir()]) if name in FOLDERS else (path.parent, [path.name])
        )
        return read_vocabulary(names, lambda file: (folder / file).read_bytes())

    return {name: read(name) for name in NAMES}


@pytest.fixture(scope="module")
def published(real_data: Path) -> dict[tuple[str, str], dict[str, int]]:
    with (real_data / "vocab_overlap.csv").open(newline="") as table:
        return {
            (row["a"], row["b"]): {name: int(row[name]) for name in ("tokens_a", "tokens_b", "common", "same_id")}
            for row in csv.DictReader(table)
        }


@pytest.fixture(scope="module")
def all_rows(vocabularies) -> dict[str, dict[bytes, set[int]]]:
    """Rows by bytes, including the doublets that a vocabulary leaves out."""

    def with_doublets(vocabulary: Vocabulary) -> dict[bytes, set[int]]:
        rows = {text: {row} for text, row in vocabulary.row_of.items()}
        for text, others in vocabulary.duplicates.items():
            rows.setdefault(text, set()).update(others)
        return rows

    return {name: with_doublets(vocabulary) for name, vocabulary in vocabularies.items()}


def test_overlap_is_as_published_once_doublets_count(all_rows, published):
    # Published: distinct byte strings, and pairs of equal rows, including doublets. Ours leaves doublets out.
    assert set(PAIRS) == set(published)
    for a, b in PAIRS[::4]:
        rows_a, rows_b = all_rows[a], all_rows[b]
        common = rows_a.keys() & rows_b.keys()
        assert published[a, b] == {
            "tokens_a": len(rows_a) + N_PADDING.get(a, 0),
            "tokens_b": len(rows_b) + N_PADDING.get(b, 0),
            "common": len(common),
            "same_id": sum(len(rows_a[text] & rows_b[text]) for text in common),
        }, (a, b)


@pytest.mark.parametrize(("a", "b"), PAIRS[::4])
def test_our_pairs_are_the_published_ones_without_doublets(vocabularies, all_rows, published, a: str, b: str):
    first, second = vocabularies[a], vocabularies[b]
    ours = common_vocabulary(first, second, n_reference_rows=first.n_rows, n_candidate_rows=second.n_rows)
    rows_a, rows_b = all_rows[a], all_rows[b]
    doublets = (first.duplicates.keys() | second.duplicates.keys()) & rows_a.keys() & rows_b.keys()
    ambiguous = {text for text in doublets if text not in first.row_of or text not in second.row_of}
    same_row_left_out = sum(
        len(rows_a[text] & rows_b[text]) - (text not in ambiguous and first.row_of[text] == second.row_of[text])
        for text in doublets
    )
    assert len(ours) == published[a, b]["common"] - len(ambiguous)
    n_same_row = np.count_nonzero(ours.reference_rows == ours.candidate_rows)
    assert n_same_row == published[a, b]["same_id"] - same_row_left_out
    # Runs of spaces in GPT-NeoX are the only strings with a doubtful meaning.
    assert ambiguous <= {b" " * n for n in range(2, 25)}
    assert not ambiguous or {a, b} & {"gpt-neox-20b", "gguf:gpt-neox"}


@pytest.mark.parametrize("name", NAMES)
def test_each_doublet_is_a_fallback_byte_or_a_run_of_spaces(vocabularies, name: str):
    vocabulary = vocabularies[name]
    n_fallback = {V1: 125, V3: 125, **dict.fromkeys(("llama2", "phi-3-mini", "gguf:llama-spm", "gguf:phi-3"), 96)}
    if name in ("gpt-neox-20b", "gguf:gpt-neox"):
        assert set(vocabulary.duplicates) == {b" " * n for n in range(2, 25)}
        assert all(len(rows) == 2 for rows in vocabulary.duplicates.values())
    else:
        assert len(vocabulary.duplicates) == vocabulary.n_duplicate == n_fallback.get(name, 0)
        assert all(len(text) == 1 and text in vocabulary.row_of for text in vocabulary.duplicates)


def test_mistral_v3_shifts_every_token_of_v1_by_768(vocabularies):
    v1, v3 = vocabularies[V1], vocabularies[V3]
    common = common_vocabulary(v1, v3, n_reference_rows=32000, n_candidate_rows=32768)
    assert len(common) == v1.n_tokens
    assert (common.candidate_rows - common.reference_rows == 768).all()


def test_llama_2_is_the_same_vocabulary_as_protobuf_and_as_json(vocabularies):
    protobuf, found = vocabularies["llama2"], vocabularies["phi-3-mini"]
    assert protobuf.row_of.items() <= found.row_of.items()
    assert found.row_of.keys() - protobuf.row_of.keys() == {b"</s>"}  # added without the special flag


@pytest.mark.parametrize(
    ("name", "source"), [("gguf:llama-spm", "llama2"), ("gguf:phi-3", "phi-3-mini"), ("gguf:gpt-neox", "gpt-neox-20b")]
)
def test_a_gguf_vocabulary_equals_its_source_files(vocabularies, name: str, source: str):
    made, original = vocabularies[name], vocabularies[source]
    assert made.row_of == original.row_of
    assert made.duplicates == original.duplicates
    assert made.n_rows == {"gguf:phi-3": 32064, "gguf:gpt-neox": 50432}.get(name, original.n_rows)  # padded


@pytest.mark.parametrize("name", ["llama2/tokenizer.model", V1, V3])
def test_sentencepiece_itself_reads_the_same_pieces_and_types(real_data: Path, name: str):
    path = real_data / "tokenizers" / name
    witness = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokens = list(sentencepiece_tokens(path.read_bytes()))
    assert len(tokens) == witness.get_piece_size()
    for row, text, token_type in tokens:
        piece = witness.id_to_piece(row)
        assert (token_type is TokenType.FALLBACK) == witness.is_byte(row)
        if witness.is_control(row) or witness.is_unknown(row):
            assert token_type in (TokenType.SPECIAL, TokenType.RESERVED)
        elif witness.is_byte(row):
            assert text == bytes([int(piece[3:5], 16)])
        else:
            assert (text.decode(), token_type) == (piece.replace("▁", " "), TokenType.TEXT)


@pytest.mark.parametrize("name", ["falcon", "gpt-neox-20b"])
def test_tokenizers_decodes_every_byte_level_row_to_the_same_text(vocabularies, real_data: Path, name: str):
    witness = Tokenizer.from_file(str(real_data / "tokenizers" / name / "tokenizer.json"))
    decoder = decoders.ByteLevel()
    for text, row in vocabularies[name].row_of.items():
        assert decoder.decode([witness.id_to_token(row)]) == text.decode(errors="replace")


TEXT = "The naïve café: 漢字 кот, x != y;\n\tprint('hello')  🦜 ﷽ 12345"


@pytest.mark.parametrize("name", ["falcon", "gpt-neox-20b", "phi-3-mini"])
def test_rows_that_tokenizers_encodes_to_spell_the_text(vocabularies, real_data: Path, name: str):
    text = TEXT.replace("  ", " ")  # runs of spaces are doublets in GPT-NeoX
    witness = Tokenizer.from_file(str(real_data / "tokenizers" / name / "tokenizer.json"))
    text_of = {row: text for text, row in vocabularies[name].row_of.items()}
    spelt = b"".join(text_of[row] for row in witness.encode(text, add_special_tokens=False).ids)
    assert spelt == (b" " if name == "phi-3-mini" else b"") + text.encode()


@pytest.mark.parametrize("name", ["llama2/tokenizer.model", V1, V3])
def test_rows_that_sentencepiece_encodes_to_spell_the_text(vocabularies, real_data: Path, name: str):
    witness = sentencepiece.SentencePieceProcessor(model_file=str(real_data / "tokenizers" / name))
    text_of = {row: text for text, row in vocabularies["llama2" if name.startswith("llama2") else name].row_of.items()}
    assert b"".join(text_of[row] for row in witness.encode(TEXT)) == b" " + TEXT.encode()
