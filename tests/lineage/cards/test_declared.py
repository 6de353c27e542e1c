"""Declarations of a card are read as data: only ids, never paths."""

from __future__ import annotations

import json

import pytest

from mdir_hf import declared_lineage
from mdir_hf.errors import ByteBudgetError, CardError, GatedRepositoryError, RepositoryNotFoundError
from mdir_hf.lineage.cards.declared import DeclaredLineage


@pytest.fixture
def declare(tmp_path):
    """Return the declarations of a local folder with this front matter and these files."""

    def declared(block=None, **files) -> DeclaredLineage:
        folder = tmp_path / "model"
        folder.mkdir()
        if block is not None:
            (folder / "README.md").write_bytes(f"---\n{block}\n---\n# T\n".encode())
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_text(content)
        return declared_lineage(folder)

    return declared


@pytest.mark.parametrize(
    ("block", "bases", "relation"),
    [
        ("base_model: a/b", ("a/b",), None),
        ("base_model: gpt2", ("gpt2",), None),
        ("base_model:\n- a/b\n- c/d\n- a/b\nbase_model_relation: merge", ("a/b", "c/d"), "merge"),
        ("base_model: https://huggingface.co/a/b", ("a/b",), None),
        ("base_model: ' a/b '", ("a/b",), None),
        ("license: mit", (), None),
        ("base_model:", (), None),
        ("base_model: []", (), None),
    ],
)
def test_declared_ids_and_relation(declare, block, bases, relation):
    found = declare(block)
    assert (found.base_models, found.relation) == (bases, relation)
    assert found.source == ("README.md" if bases else None)
    assert found.ignored == () and not found.is_adapter


@pytest.mark.parametrize(
    "value",
    [
        "../../etc/passwd", "/workspace/model", "./out", "~/model", "C:\\models\\x", "a/b/c", "a b", "<b>", "a/b@main",
        '"\\e[31ma/b"', '"a/b\\n- c"', "https://evil.example/a/b", "hf://a/b", "5", "true", "{a: b}", "[[a/b]]", "1.5",
        "ö/ä",
    ],
)  # fmt: skip
def test_an_invalid_id_is_ignored_and_shown_harmlessly(declare, value):
    found = declare(f"base_model: {value}")
    assert found.base_models == () and found.source is None
    assert len(found.ignored) == 1 and found.ignored[0].isascii() and found.ignored[0].isprintable()


def test_a_card_never_refers_to_a_local_folder(declare, tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert declare("base_model: a/b").base_models == ("a/b",)  # an id, which is opened only on the Hub


def test_relations_that_the_hub_does_not_know_are_ignored(declare):
    found = declare("base_model: a/b\nbase_model_relation: child")
    assert (found.relation, found.ignored) == (None, ("base_model_relation: 'child'",))


def test_a_newer_version_without_a_valid_id_is_ignored(declare):
    assert declare("new_version: [a/b]").ignored == ("new_version: ['a/b']",)


def test_an_adapter_names_its_base_in_its_config(declare):
    config = json.dumps({"base_model_name_or_path": "a/b"})
    found = declare("license: mit", adapter_config__json=config, adapter_model__safetensors="")
    assert (found.base_models, found.relation, found.source) == (("a/b",), "adapter", "adapter_config.json")
    assert found.is_adapter and found.adapter_of == "a/b"


@pytest.mark.parametrize("config", ["{}", "[]", json.dumps({"base_model_name_or_path": "/root/model"}), '"x"'])
def test_an_adapter_without_a_usable_base_declares_none(declare, config):
    assert declare(adapter_config__json=config).base_models == ()


def test_an_adapter_config_that_is_not_json(declare):
    found = declare("base_model: a/b", adapter_config__json="{")
    assert (found.base_models, found.ignored) == (("a/b",), ("adapter_config.json: not JSON",))


def test_a_huge_card_is_not_read(declare, tmp_path):
    declare()
    with (tmp_path / "model" / "README.md").open("wb") as file:
        file.truncate((8 << 20) + 1)
    with pytest.raises(ByteBudgetError):
        declared_lineage(tmp_path / "model")


def test_hostile_yaml_is_one_error(declare):
    with pytest.raises(CardError):
        declare("base_model: !!python/object/apply:os.system ['true']")


def test_on_the_hub_it_is_pinned_and_needs_the_right_to_read(loopback_hub, tmp_path):
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "README.md").write_text("---\nbase_model: a/b\n---\n")
    (folder / "weights.bin").write_bytes(b"x" * 1000)
    commit = loopback_hub.add_repository("me/tuned", folder)
    loopback_hub.add_repository("me/gated", folder, gated=True)
    found = declared_lineage("me/tuned")
    assert (found.repo, found.commit, found.base_models) == ("me/tuned", commit, ("a/b",))
    assert not loopback_hub.sent("cdn")
    with pytest.raises(GatedRepositoryError):
        declared_lineage("me/gated")
    assert declared_lineage("me/gated", token=loopback_hub.token).base_models == ("a/b",)
    with pytest.raises(RepositoryNotFoundError):
        declared_lineage("me/none")
