from __future__ import annotations

import json

import pytest

from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens import VocabularyKind
from mdir_hf.model.tokens.json_file import without_merges


def added(row: int, content: str, *, special: bool = False) -> dict[str, object]:
    return {"id": row, "content": content, "special": special, "normalized": False}


def tokenizer(vocab: object, *added_tokens: object, **parts: object) -> dict[str, object]:
    model = {"type": "BPE", "vocab": vocab, "merges": [], **parts.pop("model", {})}  # type: ignore[dict-item]
    return {"version": "1.0", "added_tokens": list(added_tokens), "model": model, **parts}


BYTE_LEVEL = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}


def test_byte_level_tokens_become_bytes_added_ones_stay_literal(read):
    file = tokenizer({"a": 0, "Ġa": 1, "Ã": 2}, added(3, "Ã"), added(4, "  "), pre_tokenizer=BYTE_LEVEL)
    vocabulary = read({"tokenizer.json": file})
    assert vocabulary.kind is VocabularyKind.BYTE_LEVEL
    assert vocabulary.row_of == {b"a": 0, b" a": 1, b"\xc3": 2, "Ã".encode(): 3, b"  ": 4}
    assert vocabulary.files == ("tokenizer.json",)


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
def test_byte_level_is_seen_wherever_it_is_declared(read, part: str):
    # Without the declaration, the marker ▁ would decide.
    assert read({"tokenizer.json": tokenizer({"▁": 0, "Ã": 1}, **{part: {"type": "ByteLevel"}})}).row_of[b"\xc3"] == 1


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": {"type": "Metaspace"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}},
        {"normalizer": {"type": "Prepend", "prepend": "▁"}},
        {
            "decoder": {
                "type": "Sequence",
                "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}],
            }
        },
    ],
)
def test_sentencepiece_spelling_is_seen_in_each_way_of_declaring_it(read, parts):
    vocabulary = read({"tokenizer.json": tokenizer({"Ġx": 0, "▁a": 1, "<0x0A>": 2}, **parts)})
    assert vocabulary.kind is VocabularyKind.SENTENCEPIECE
    assert vocabulary.row_of == {"Ġx".encode(): 0, b" a": 1, b"\n": 2}


@pytest.mark.parametrize("part", ["pre_tokenizer", "decoder"])
def test_metaspace_may_write_a_space_as_another_character(read, part: str):
    declared = {part: {"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "replacement": "_"}]}}
    vocabulary = read({"tokenizer.json": tokenizer({"_a": 0, "▁a": 1, "a": 2}, **declared)})
    assert vocabulary.row_of == {b" a": 0, "▁a".encode(): 1, b"a": 2}


def test_wordpiece_takes_its_prefix_from_the_file(read):
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "@@"}
    vocabulary = read({"tokenizer.json": tokenizer({"[UNK]": 0, "run": 1, "@@ning": 2}, model=model)})
    assert vocabulary.row_of == {b" run": 1, b"ning": 2}


def test_an_end_of_word_suffix_is_taken_from_the_file(read):
    file = tokenizer({"run": 0, "run</w>": 1}, model={"end_of_word_suffix": "</w>"})
    assert read({"tokenizer.json": file}).row_of == {b"run": 0, b"run ": 1}


def test_special_added_tokens_are_left_out_though_listed(read):
    file = tokenizer(
        {"<s>": 0, "a": 1},
        added(0, "<s>", special=True),
        added(2, "<|im_start|>"),
        added(3, "<tool>", special=False),
        added(4, "<|reserved_special_token_0|>", special=True),
    )
    vocabulary = read({"tokenizer.json": file})
    assert vocabulary.row_of == {b"a": 1, b"<tool>": 3}
    assert (vocabulary.n_special, vocabulary.n_reserved) == (2, 1)


def test_an_added_token_that_repeats_an_entry_is_that_entry(read):
    file = tokenizer({"Ġa": 0, "b": 1}, added(0, "Ġa"), pre_tokenizer=BYTE_LEVEL)
    assert read({"tokenizer.json": file}).row_of == {b" a": 0, b"b": 1}


def test_an_added_token_on_a_used_row_takes_the_row_out(read):
    vocabulary = read({"tokenizer.json": tokenizer({"a": 0, "b": 1}, added(0, "chat"))})
    assert vocabulary.row_of == {b"b": 1}
    assert vocabulary.duplicates == {b"a": (0,), b"chat": (0,)}


def test_a_special_added_token_on_a_used_row_makes_the_row_special(read):
    vocabulary = read({"tokenizer.json": tokenizer({"a": 0, "b": 1}, added(0, "<chat>", special=True))})
    assert vocabulary.row_of == {b"b": 1}
    assert vocabulary.n_special == 1


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"a": 0}, r'expected "model" to be an object, found no such key'),
        ({"model": []}, r'expected "model" to be an object, found a list'),
        (tokenizer(None), r'"model\.vocab" to be an object or a list, found null'),
        (tokenizer({"a": "0"}), r"token 'a' has the id '0'; expected an integer"),
        (tokenizer({"a": True}), r"token 'a' has the id True; expected an integer"),
        (tokenizer({"a": 1.0}), r"token 'a' has the id 1\.0; expected an integer"),
        (tokenizer({"a": float("nan")}), r"token 'a' has the id nan; expected an integer"),
        (tokenizer({"a": {}}), r"token 'a' has the id an object; expected an integer"),
        (tokenizer({"a": -1}), r"token b'a' has the id -1, expected 0 to"),
        (tokenizer({"a": 10**12}), r"token b'a' has the id 1000000000000, expected 0 to"),
        (tokenizer([["a", 0.0], [7, 0.0]]), r'expected \[piece, score\] at place 1 of "model\.vocab", found a list'),
        (tokenizer(["a"]), r"expected \[piece, score\] at place 0 of \"model\.vocab\", found 'a'"),
        ({**tokenizer({"a": 0}), "added_tokens": {}}, r'expected "added_tokens" to be a list, found an object'),
        (tokenizer({"a": 0}, "b"), r'expected objects in "added_tokens", found a string'),
        (tokenizer({"a": 0}, {"id": 1}), r'expected "content" to be a string, found no such key'),
        (tokenizer({"a": 0}, {"content": "b"}), r"token 'b' has the id None; expected an integer"),
    ],
)
def test_a_field_of_the_wrong_type_is_named_with_the_expected_type(read, file, message: str):
    with pytest.raises(VocabularyError, match=r"tokenizer\.json: .*" + message):
        read({"tokenizer.json": file})


def test_half_a_surrogate_pair_is_an_error(read):
    with pytest.raises(
        VocabularyError, match=r"tokenizer\.json: expected text, found a token with half of a surrogate"
    ):
        read({"tokenizer.json": b'{"model": {"vocab": {"\\ud800": 0}}}'})


MERGES = [["Ġ t", "a ]", 'quo te"', "back\\ slash"], [["Ġ", "t"], ["]", "["], ['"', "\\"]], [], ["x y"] * 1000]


@pytest.mark.parametrize("merges", MERGES)
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_merges_are_emptied_and_nothing_else_changes(merges, indent, ascii_only: bool):
    found = {"model": {"merges": merges, "vocab": {'"merges": [': 0, '\\"merges': 1, "merges": 2, "é]": 3}}, "z": [1]}
    data = json.dumps(found, indent=indent, ensure_ascii=ascii_only).encode()
    found["model"]["merges"] = []
    assert json.loads(without_merges(data)) == found


def test_vocab_json_with_added_tokens_reads_both(read):
    vocabulary = read({"vocab.json": {"a": 0, "Ġa": 1}, "added_tokens.json": {"<|im_end|>": 2, "Ġtool": 3, "a": 0}})
    assert vocabulary.row_of == {b"a": 0, b" a": 1, "Ġtool".encode(): 3}
    assert vocabulary.files == ("vocab.json", "added_tokens.json")


def test_markup_among_the_first_rows_is_special(read):
    vocabulary = read({"vocab.json": {"<s>": 0, "</s>": 16, "a": 17}})
    assert vocabulary.row_of == {b"</s>": 16, b"a": 17}


def test_vocab_json_of_marked_word_ends_gets_spaces(read):
    assert read({"vocab.json": {"run": 0, "run</w>": 1}}).row_of == {b"run": 0, b"run ": 1}


def test_a_piece_outside_of_the_byte_alphabet_is_left_out(read):
    model = {"vocab": {"Ġa": 0, "é x": 1, "中": 2, "b": 3}}
    added = [{"id": 2, "content": "中", "special": False}]
    byte_level = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]}}
    vocabulary = read({"tokenizer.json": {"model": model, "added_tokens": added, **byte_level}})
    assert vocabulary.row_of == {b" a": 0, "中".encode(): 2, b"b": 3}
    assert vocabulary.n_unused == 1
    # If only the decoder knows bytes, the encoder applies the pieces to the text unchanged.
    assert read({"tokenizer.json": {"model": model, "decoder": {"type": "ByteLevel"}}}).row_of["é x".encode()] == 1


def test_headings_do_not_turn_marked_word_ends_into_wordpiece(read):
    words = {f"w{row}</w>": row for row in range(8)}
    plain = read({"vocab.json": words}).row_of
    assert read({"vocab.json": {**words, "##</w>": 8, "####</w>": 9}}).row_of == {**plain, b"## ": 8, b"#### ": 9}
