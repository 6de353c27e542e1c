"""Rows of SentencePiece pieces by tokenizer class, held against the converters of transformers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mdir_hf.errors import VocabularyError

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
    """Row of each piece of text as the converter of a slow tokenizer numbers them."""
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
