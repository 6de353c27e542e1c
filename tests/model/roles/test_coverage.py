"""The table of causal language models: the roles of every class by value, and comparisons of some."""

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks import coverage
from benchmarks.coverage import PAGE, REASONS, Row, cells, cover, cover_all, page, totals

# One of each kind: fused, experts, latent, hybrid, decoder only.
COMPARED = ("falcon", "gpt_oss", "deepseek_v3", "qwen3_next", "bart")
OTHERS = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(COMPARED))
QUICK = frozenset(
    {
        *("bloom", "codegen", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "llama", "mpt", "opt", "persimmon", "phi3"),
        *("dbrx", "ernie4_5_moe", "granitemoe", "jetmoe", "llama4_text", "mixtral", "phimoe", "qwen2_moe"),
        *("deepseek_v2", "kimi_linear", "longcat_flash", "minicpm3"),
        *("gemma2", "olmo2", "qwen3", "cohere"),
    }
)
"""Classes whose files have a layout of their own; the slow tests take the others too."""
ALSO_COMPARED = set(OTHERS[::12])
"""Comparisons read roles, not classes; ``make coverage`` compares every class."""


@pytest.mark.parametrize("model_type", COMPARED)
def test_a_class_has_every_role_and_finds_its_relative(model_type):
    check(cover(model_type))


@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OTHERS]
)
def test_every_class_has_every_role_or_a_reason(model_type):
    compares = model_type in ALSO_COMPARED - QUICK
    row = cover(model_type, compares=compares)
    if not compares:
        row.relative = row.stranger = row.model_type not in NOT_COMPARED
    check(row)


def check(row):
    assert row.wrong == []
    assert row.is_full == (row.model_type not in REASONS), cells(row)
    if row.model_type not in NOT_COMPARED:
        assert (row.embedding, row.relative, row.stranger) == (True, True, True), cells(row)


NOT_COMPARED = {"gemma3n", "gemma4_assistant", "musicgen", "musicgen_melody"}


def test_every_reason_names_an_existing_class():
    assert set(REASONS) <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert set(REASONS) >= NOT_COMPARED


def test_the_page_has_a_line_for_every_class():
    lines = PAGE.read_text(encoding="utf-8").partition("\n## ")[0].splitlines()
    listed = [line.split(" | ")[1] for line in lines if line.startswith("| ")][2:]
    assert listed == list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert "- 0 roles are wrong" in lines


# --- output of the table for a row

FULL = Row("llama", "LlamaForCausalLM", True, "q k v o", "gate up down", 0, True, True)


@pytest.mark.parametrize(
    "change",
    [
        {"embedding": False},
        {"attention": "q k v"},
        {"attention": "q k v o in 1 of 2"},
        {"attention": ""},
        {"mlp": "up"},
        {"mlp": ""},
        {"relative": False},
        {"stranger": False},
        {"wrong": ["layer 0: q is k"]},
        {"problem": "transformers cannot build it"},
    ],
)
def test_a_row_that_lacks_something_is_not_full(change):
    row = Row(**(vars(FULL) | change))
    assert not row.is_full
    assert FULL.is_full
    assert "- 1 of 2 rows are complete" in page([FULL, row]).splitlines()


def test_wrong_roles_are_listed_in_the_table():
    row = Row("llama", "LlamaForCausalLM", wrong=["layer 0: q is k"], left=["mlp.odd"])
    assert cells(row)[-1] == "WRONG: layer 0: q is k; no role: mlp.odd"
    assert "1 roles are wrong" in totals([row])


def test_a_class_that_transformers_cannot_build_is_a_row(monkeypatch):
    def fail(*_, **__):
        raise ImportError("no  timm\nhere")

    monkeypatch.setattr(coverage, "build_module", fail)
    row = cover("llama")
    assert row.problem == "transformers cannot build it: ImportError: no timm here"
    assert not row.is_full


def test_a_class_that_cannot_be_run_is_compared(monkeypatch):
    def fail(*_, **__):
        raise ValueError("wants sound")

    monkeypatch.setattr(coverage, "record_forward", fail)
    row = cover("gpt2")
    assert row.problem == "transformers cannot run it on a token: ValueError: wants sound"
    assert (row.embedding, row.relative, row.stranger, row.attention) == (True, True, True, "")


def test_rows_can_be_chosen(capsys):
    cover_all(["gpt2"])
    assert "GPT2LMHeadModel | gpt2 | yes | q k v o | up down | yes | yes" in capsys.readouterr().out


def test_an_invalid_class_is_refused():
    with pytest.raises(SystemExit, match="has no causal model called gpt_of_tomorrow"):
        cover_all(["gpt2", "gpt_of_tomorrow"])
