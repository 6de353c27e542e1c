"""Tokenizers: random vocabularies written by tokenizers, sentencepiece and tiktoken, against their decoded text."""

from __future__ import annotations

import base64
import io
import json
import random
import re
from pathlib import Path

import pytest

from mdir_hf.model.tokens import Vocabulary, read_vocabulary
from tests.oracles.tally import cases

pytestmark = pytest.mark.slow

WORDS = [
    *("the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with", "his"),
    *("they", "at", "be", "this", "have", "from", "or", "one", "had", "by"),
]
LETTERS = "abcdefghijklmnopqrstuvwxyzäéßñ中文字日本한국éÀ0123456789.,;:!?#-_()"


def read(files: dict[str, bytes]) -> Vocabulary:
    return read_vocabulary(files, files.__getitem__)


def corpus(rng: random.Random) -> list[str]:
    words = [*WORDS, *("".join(rng.choices(LETTERS, k=rng.randint(1, 9))) for _ in range(150))]
    return [" ".join(rng.choices(words, k=12)) for _ in range(150)]


def trained(rng: random.Random, kind: str):
    """Train a tokenizer of the library on random words."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    size, specials = rng.randint(300, 600), ["<unk>", "<s>", "</s>"]
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=rng.random() < 0.5)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, initial_alphabet=alphabet)
    elif kind == "wordpiece":
        prefix = rng.choice(["##", "@@", "~"])
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>", continuing_subword_prefix=prefix))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix=prefix, cleanup=False)
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=specials, continuing_subword_prefix=prefix)
    elif kind == "metaspace":
        mark = rng.choice(["▁", "▁", "_", "␣"])
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=mark, prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace(replacement=mark, prepend_scheme="always")
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials)
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=specials, unk_token="<unk>", show_progress=False
        )
    elif kind == "end of word":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, end_of_word_suffix="</w>")
    else:  # the pipeline of Llama 2
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials)
    trainer.show_progress = False
    tokenizer.train_from_iterator(corpus(rng), trainer)
    return tokenizer


KINDS = ("byte-level", "wordpiece", "metaspace", "unigram", "end of word", "llama")


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_the_text_that_it_adds_in_the_library(tally, kind):
    library = "tokenizers"
    for case in range(cases(2, 25)):
        rng = random.Random(case)
        tokenizer = trained(rng, kind)
        vocabulary = read({"tokenizer.json": tokenizer.to_str().encode()})
        text_of = {row: text for text, row in vocabulary.row_of.items()}
        anchor = next(row for row, text in text_of.items() if text.strip() == b"t" or text == b"t")
        # A word before and after prevents stripping at the ends.
        bare = tokenizer.decode([anchor, anchor], skip_special_tokens=False)
        for row in sorted(text_of):
            around = tokenizer.decode([anchor, row, anchor], skip_special_tokens=False)
            ends = tokenizer.decode([anchor], skip_special_tokens=False)
            added = around[len(ends) :]
            tail = bare[len(ends) :]
            if "�" in around:
                continue  # part of a character, which the library does not decode
            added = added.removesuffix(tail) if tail else added
            tally.agree(
                library, f"{kind} {case}: row {row}, {text_of[row]!r} and {added!r}", text_of[row] == added.encode()
            )
        n_known = vocabulary.n_tokens + vocabulary.n_duplicate + vocabulary.n_special + vocabulary.n_unused
        tally.agree(library, f"{kind} {case}: rows", n_known + vocabulary.n_reserved == tokenizer.get_vocab_size())


@pytest.mark.parametrize("model_type", ["bpe", "unigram", "char", "word"])
def test_pieces_match_sentencepiece(tally, model_type, tmp_path):
    spm = pytest.importorskip("sentencepiece")
    library = "sentencepiece"
    for case in range(cases(2, 25)):
        rng = random.Random(case)
        model = io.BytesIO()
        has_bytes = model_type in ("bpe", "unigram") and rng.random() < 0.5
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus(rng)),
            model_writer=model,
            model_type=model_type,
            vocab_size=rng.randint(420, 520),
            hard_vocab_limit=False,
            byte_fallback=has_bytes,
            user_defined_symbols=["<tool>", "ab cd"],
            control_symbols=["<ctrl>"],
            unk_id=rng.choice([0, 3]),
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            minloglevel=2,
            num_threads=1,
        )
        processor = spm.SentencePieceProcessor(model_proto=model.getvalue())
        vocabulary = read({"tokenizer.model": model.getvalue()})
        for text, row in vocabulary.row_of.items():
            piece = processor.id_to_piece(row)
            if processor.is_byte(row):
                right = text == bytes.fromhex(piece[3:5])
            else:
                right = text.decode() == piece.replace("▁", " ") and not processor.is_control(row)
            tally.agree(library, f"{model_type} {case}: row {row}, {text!r} and {piece!r}", right)
        left_out = set(range(processor.get_piece_size())) - set(vocabulary.row_of.values())
        doubled = {row for rows in vocabulary.duplicates.values() for row in rows}
        for row in left_out - doubled:
            is_no_text = processor.is_control(row) or processor.is_unknown(row) or processor.is_byte(row)
            case_of = f"{model_type} {case}: row {row}, {processor.id_to_piece(row)!r} is left out"
            tally.agree(library, case_of, is_no_text or processor.is_unused(row))


def test_ranks_match_tiktoken(tally, tmp_path):
    load = pytest.importorskip("tiktoken.load")
    library = "tiktoken"
    for case in range(cases(5, 60)):
        rng = random.Random(case)
        tokens = {bytes([byte]) for byte in range(256)}
        while len(tokens) < 256 + 40 * (1 + case % 10):
            tokens.add(bytes(rng.randrange(256) for _ in range(rng.randint(2, 12))))
        ranked = sorted(tokens, key=lambda token: (len(token), token))
        rng.shuffle(ranked)
        lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(ranked)]
        path = Path(tmp_path) / f"{case}.tiktoken"
        path.write_bytes(b"\n".join(lines) + b"\n")
        theirs = load.load_tiktoken_bpe(str(path))
        vocabulary = read({"vocab.tiktoken": path.read_bytes()})
        tally.agree(library, f"ranks of file {case}", dict(vocabulary.row_of) == theirs)


def test_vocabularies_that_the_library_refuses_are_refused(tally):
    """Changed JSON that tokenizers does not load is refused, or gives no rows that contradict the original."""
    from tokenizers import Tokenizer

    from mdir_hf.errors import MdirError

    rng = random.Random(5)
    text = trained(rng, "byte-level").to_str()
    original = read({"tokenizer.json": text.encode()})
    for case in range(cases(60, 1500)):
        at = rng.randrange(len(text))
        changed = text[:at] + rng.choice('{}[]",:0aé') + text[at + 1 :]
        try:
            Tokenizer.from_str(changed)
            continue
        except KeyboardInterrupt:
            raise
        except BaseException:  # a panic of its Rust code is not an Exception
            pass
        try:
            vocabulary = read({"tokenizer.json": changed.encode()})
        except MdirError:
            tally.agree("tokenizers", "", True)
            continue
        # We read only the vocabulary: a wrong merge or pipeline moves no row, and a changed key moves only its own.
        moved = [token for token, row in vocabulary.row_of.items() if original.row_of.get(token, row) != row]
        one_key = len(set(vocabulary.row_of.items()) ^ set(original.row_of.items())) <= 4
        parsed = re.sub(r"\s", "", changed) != re.sub(r"\s", "", text) and isinstance(json.loads(changed), dict)
        tally.agree("tokenizers", f"changed file {case} moves rows {moved[:3]}", len(moved) < 2 and one_key and parsed)
