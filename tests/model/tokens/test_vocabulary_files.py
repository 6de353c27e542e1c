from __future__ import annotations

import base64
import json
from types import SimpleNamespace

import pytest

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import doubts_of_vocabulary, read_vocabulary, vocabulary_files


@pytest.mark.parametrize(
    ("primary", "files"),
    [
        ("tokenizer.json", ("tokenizer.json",)),
        ("vocab.json", ("vocab.json", "added_tokens.json")),
        ("tokenizer.model", ("tokenizer.model", "added_tokens.json")),
        ("tekken.json", ("tekken.json",)),
    ],
)
def test_added_tokens_are_a_companion_of_the_primary_file(primary: str, files: tuple[str, ...]):
    assert vocabulary_files({"added_tokens.json", primary, "merges.txt"}) == files


def test_a_tokenizer_in_its_own_folder_is_found(read):
    files = {"tokenizer/vocab.json": {"a": 0, "b": 2}, "tokenizer/added_tokens.json": {"c": 1}, "added_tokens.json": {}}
    assert vocabulary_files(files) == ("tokenizer/vocab.json", "tokenizer/added_tokens.json")
    assert read(files).row_of == {b"a": 0, b"b": 2, b"c": 1}
    assert vocabulary_files({"original/tokenizer.model"}) == ("original/tokenizer.model",)
    assert vocabulary_files({*files, "vocab.txt"}) == ("vocab.txt",)


@pytest.mark.parametrize("second", ["vocab.json", "tokenizer.model"])
def test_a_stale_tokenizer_json_counts_the_tokens_that_moved(read, sentencepiece_file, second: str):
    words = [f"w{n}" for n in range(400)]
    turned = [*words[5:], *words[:5]]
    model = {"vocab": {word: row for row, word in enumerate(turned)}}
    own = sentencepiece_file([(word, 1) for word in words])
    if second == "vocab.json":
        own = {word: row for row, word in enumerate(words)}
    files = {"tokenizer.json": {"model": model}, second: own}

    def content(name: str) -> bytes:
        return files[name] if isinstance(files[name], bytes) else json.dumps(files[name]).encode()

    vocabulary = read(files)
    assert doubts_of_vocabulary(files, content, vocabulary) == (
        f"tokenizer.json and {second} give different rows to 400 of 400 tokens that both have; tokenizer.json was read",
    )
    model["vocab"] = {word: row for row, word in enumerate(words)} | {"w0": 999}  # a few may have changed since
    assert doubts_of_vocabulary(files, content, read(files)) == ()


def test_a_second_file_without_a_vocabulary_raises_no_doubt(read):
    files = {"tokenizer.json": b'{"model": {"vocab": {"a": 0}}}', "classifier.model": b"\x80no pieces"}
    assert doubts_of_vocabulary(files, files.__getitem__, read(files)) == ()


def test_only_the_files_named_beforehand_are_read():
    files = {"vocab.json": b'{"a": 0}', "merges.txt": b"", "tokenizer.model": b"", "added_tokens.json": b'{"b": 1}'}
    asked = []

    def read(name: str) -> bytes:
        asked.append(name)
        return files[name]

    vocabulary = read_vocabulary(files, read)
    assert tuple(asked) == vocabulary.files == vocabulary_files(files)


def test_without_a_vocabulary_the_error_lists_accepted_files():
    with pytest.raises(VocabularyError, match=r"expected tokenizer\.json, vocab\.json.* found none among 1 files"):
        read_vocabulary(["config.json"], lambda name: b"")


EVERY_KIND = [
    *("tokenizer.json", "vocab.json", "tokenizer.model", "a.tiktoken", "tekken.json", "vocab.txt", "rwkv_vocab_v1.txt"),
]


@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "a web page instead of the file"),
        (b"\xef\xbb\xbf \r\n<html>\n<head>", "a web page instead of the file"),
        (b"", "an empty file"),
    ],
    ids=["pointer", "web page", "web page with a mark", "empty"],
)
def test_a_wrongly_downloaded_file_is_named_in_the_error(read, name: str, data: bytes, what: str):
    with pytest.raises(VocabularyError, match=rf"{name}: expected .* found {what}"):
        read({name: data})


def test_a_tokenizer_json_beside_a_tekken_is_read_and_says_the_same(read):
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(text).decode()} for rank, text in enumerate([b"a", b" b"])]
    tekken = {"config": {"default_vocab_size": 4, "default_num_special_tokens": 2}, "vocab": vocab}
    special = [{"id": row, "content": f"<{row}>", "special": True} for row in range(2)]
    both = {
        "tekken.json": tekken,
        "tokenizer.json": {
            "added_tokens": special,
            "decoder": {"type": "ByteLevel"},
            "model": {"vocab": {"<0>": 0, "<1>": 1, "a": 2, "Ġb": 3}},
        },
    }
    assert vocabulary_files(both) == ("tokenizer.json",)
    assert read(both).row_of == read({"tekken.json": tekken}).row_of == {b"a": 2, b" b": 3}
    assert read({"tekken.json": tekken}).n_special == read(both).n_special == 2


# --- flags of single rows from tokenizer_config.json, for repositories without a tokenizer.json


CONFIG = "tokenizer_config.json"


def config(*tokens: tuple[int, str, bool]) -> dict[str, object]:
    return {"added_tokens_decoder": {str(row): {"content": text, "special": flag} for row, text, flag in tokens}}


@pytest.mark.parametrize(
    ("primary", "is_read"),
    [
        *((name, True) for name in ("vocab.json", "tokenizer.model", "tokenizer.model.v3", "a.tiktoken", "vocab.txt")),
        *((name, False) for name in ("tokenizer.json", "tekken.json", "rwkv_vocab_v1.txt")),
    ],
)
def test_it_is_read_beside_files_that_hold_no_flags(primary, is_read):
    assert vocabulary_files({primary, CONFIG, "merges.txt"}) == ((primary, CONFIG) if is_read else (primary,))


def test_a_row_flagged_special_is_left_out_though_it_looks_like_text(read):
    files = {"vocab.json": {"a": 0, "begin": 1, "Ġb": 2}}
    assert read(files).row_of == {b"a": 0, b"begin": 1, b" b": 2}
    vocabulary = read(files | {CONFIG: config((1, "begin", True))})
    assert vocabulary.row_of == {b"a": 0, b" b": 2}
    assert vocabulary.n_special == 1


def test_rows_that_only_the_config_knows_are_literal_text_or_special(read):
    ranks = base64.b64encode(b"a") + b" 0\n" + base64.b64encode(b"b") + b" 1\n"
    added = config((2, "<|endoftext|>", True), (3, "  ", False), (4, "<|x|>", False), (5, "<|reserved_7|>", False))
    vocabulary = read({"qwen.tiktoken": ranks, CONFIG: added})
    assert vocabulary.row_of == {b"a": 0, b"b": 1, b"  ": 3}
    assert (vocabulary.n_special, vocabulary.n_reserved, vocabulary.n_rows) == (2, 1, 6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{]", "expected JSON in UTF-8"),
        ({"added_tokens_decoder": []}, '"added_tokens_decoder" to be an object, found a list'),
        ({"added_tokens_decoder": {"x": {}}}, "to map numbers to objects, found 'x': an object"),
        ({"added_tokens_decoder": {"-1": {}}}, "to map numbers to objects, found '-1'"),
        ({"added_tokens_decoder": {"9" * 12: {}}}, "to map numbers to objects, found '999"),
        ({"added_tokens_decoder": {"3": "a"}}, "found '3': a string"),
        ({"added_tokens_decoder": {"3": {"content": 5}}}, '"content" to be a string, found a number'),
    ],
)
def test_a_broken_config_is_named(read, content, message):
    with pytest.raises(VocabularyError, match=rf"{CONFIG}: .*{message}"):
        read({"vocab.json": {"a": 0}, CONFIG: content})


# --- rows of SentencePiece pieces by tokenizer class, compared with the converters of transformers


PIECES = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((f"▁w{n}", 1) for n in range(60)), ("ing", 1)]
BPE, SPIECE = "sentencepiece.bpe.model", "spiece.model"
CLASSES = {
    "XLMRoberta": BPE,
    "XGLM": BPE,
    "MBart": BPE,
    "MBart50": BPE,
    "Nllb": BPE,
    "SeamlessM4T": BPE,
    "Camembert": BPE,
    "Pegasus": SPIECE,
    "T5": SPIECE,
    "Albert": SPIECE,
    "Barthez": BPE,
}
PEGASUS = {"pad_token": "<pad>", "eos_token": "</s>", "mask_token": "<mask_2>", "mask_token_sent": "<mask_1>"}


def rows_in_transformers(name: str) -> dict[bytes, int]:
    """Row of each piece of text, as numbered by the converter of a slow tokenizer."""
    from transformers.convert_slow_tokenizer import SLOW_TO_FAST_CONVERTERS

    proto = SimpleNamespace(pieces=[SimpleNamespace(piece=piece, score=0.0) for piece, _ in PIECES])
    slow = SimpleNamespace(**PEGASUS, mask_token_id=3, offset=103, _extra_ids=100)
    converter = SLOW_TO_FAST_CONVERTERS[f"{name}Tokenizer"]
    numbered = converter.vocab(SimpleNamespace(original_tokenizer=slow), proto)
    text = {piece for piece, kind in PIECES if kind == 1}
    return {piece.replace("▁", " ").encode(): row for row, (piece, _) in enumerate(numbered) if piece in text}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("suffix", ["Tokenizer", "TokenizerFast"])
def test_pieces_have_the_rows_that_their_class_gives_them(read, sentencepiece_file, name: str, suffix: str):
    files = {CLASSES[name]: sentencepiece_file(PIECES), "tokenizer_config.json": {"tokenizer_class": name + suffix}}
    expected = rows_in_transformers(name)
    vocabulary = read(files)
    assert len(expected) == 61
    assert vocabulary.row_of == expected
    assert vocabulary.n_special == min(expected.values())


def test_pieces_of_plbart_have_the_rows_of_its_slow_tokenizer(tmp_path, real_data):
    from transformers import PLBartTokenizer

    from mdir_hf.model.tokens import read_vocabulary

    data = (real_data / "tokenizers" / "llama2" / "tokenizer.model").read_bytes()
    (tmp_path / BPE).write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PLBartTokenizer"}')
    theirs = PLBartTokenizer.from_pretrained(tmp_path).get_vocab()
    mine = read_vocabulary([BPE, "tokenizer_config.json"], lambda name: (tmp_path / name).read_bytes()).row_of
    same = {text: row for text, row in theirs.items() if mine.get(text.replace("▁", " ").encode()) is not None}
    assert len(same) > 31_000
    assert all(mine[text.replace("▁", " ").encode()] == row for text, row in same.items())


@pytest.mark.parametrize(
    ("file", "family", "first_row"),
    [(BPE, "xlm-roberta", 4), (BPE, "camembert", 7), (SPIECE, "pegasus", 106), (SPIECE, "t5", 3), (BPE, None, 3)],
)
def test_the_model_type_decides_if_the_tokenizer_names_no_class(read, sentencepiece_file, file, family, first_row):
    files = {file: sentencepiece_file(PIECES), "config.json": {"model_type": family}, "tokenizer_config.json": {}}
    assert read(files).row_of[b" w0"] == first_row


@pytest.mark.parametrize(
    ("declared", "row"), [({}, 20_004), ({"num_image_tokens": 0}, 4), ({"num_image_tokens": 7}, 11)]
)
def test_image_tokens_of_the_first_chatglm_come_before_its_pieces(read, sentencepiece_file, declared, row: int):
    pieces = [*PIECES[:4], ("ab", 1), ("<n>", 4), ("<|tab|>", 4), ("<|blank_3|>", 4)]
    config = {"tokenizer_class": "ChatGLMTokenizer", **declared}
    vocabulary = read({"ice_text.model": sentencepiece_file(pieces), "tokenizer_config.json": config})
    assert [vocabulary.row_of[text] for text in (b"ab", b"\n", b"\t", b"   ")] == [row, row + 1, row + 2, row + 3]


@pytest.mark.parametrize("number", [-1, 1 << 20, 1 << 24, "20000", 1.5, True, None])
def test_an_invalid_number_of_image_tokens_is_an_error(read, sentencepiece_file, number):
    files = {"ice_text.model": sentencepiece_file(PIECES), "tokenizer_config.json": {"num_image_tokens": number}}
    with pytest.raises(VocabularyError, match=r'ice_text\.model: expected "num_image_tokens" to be a number of rows'):
        read(files)


def test_a_token_in_two_rows_is_a_doubt_that_names_both(read, sentencepiece_file):
    declared = {"added_tokens_decoder": {"3": {"content": "<unk>", "special": True}}}
    files = {BPE: sentencepiece_file(PIECES), "tokenizer_config.json": declared}
    assert read(files).doubts == (f"tokenizer_config.json puts the token '<unk>' in row 3, {BPE} in row 0",)
    declared["tokenizer_class"] = "XLMRobertaTokenizer"
    assert read(files).doubts == ()
