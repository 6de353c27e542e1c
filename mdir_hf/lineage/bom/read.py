"""Read a third party's CycloneDX document: the models that it lists and their stated bases.

The document is untrusted JSON, so its size is limited. The reader of cyclonedx-python-lib drops model cards, so it is
not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mdir_hf.budgets import Budget, json_weight
from mdir_hf.errors import InputError
from mdir_hf.lineage.cards.claim import COMMIT
from mdir_hf.lineage.cards.section import LinkedBom
from mdir_hf.names import is_repo_id, visible_text

DOCUMENT = Budget(32 << 20, 4 << 20)
"""Documents with tens of thousands of components take about 10 MB."""

VERSIONS = ("1.4", "1.5", "1.6", "1.7")
MODEL = "machine-learning-model"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".ckpt", ".onnx", ".onnx_data")

_MOST_COMPONENTS = 100_000
_DEEPEST = 64
_BASE_FIELDS = ("base_model", "base_models", "basemodel")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model in a document.

    Attributes:
        name: Printable name.
        repo: Repo id on the Hub, or None.
        commit: Full or abbreviated commit, or None.
        hashes: Stated SHA-256 of the model or of its files.
    """

    name: str
    repo: str | None
    commit: str | None
    hashes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name if self.repo is None else self.repo + (f"@{self.commit[:8]}" if self.commit else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedBase:
    """A document's claim that one model is the base of another.

    Attributes:
        stated_in: Field that contains the claim: ``pedigree.ancestors``, ``modelCard.properties`` or ``properties``.
        part: Part of the model that the claim is about; None for the whole model.
    """

    model: ListedModel
    base: ListedModel
    stated_in: str
    part: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BillOfMaterials:
    """The parts of a document that are about models.

    Attributes:
        tools: Tools that wrote the document.
    """

    version: str
    tools: tuple[str, ...]
    models: tuple[ListedModel, ...]
    claims: tuple[StatedBase, ...]


def read_bom_file(path: Path) -> BillOfMaterials:
    """Read a document from a file.

    Raises:
        InputError: If the file cannot be read, or is not CycloneDX 1.4 to 1.7 in JSON.
    """
    try:
        with path.open("rb") as file:
            content = file.read(DOCUMENT.n_bytes + 1)
    except OSError as exc:
        raise InputError(f"cannot be read: {exc.strerror}", subject=str(path)) from exc
    return read_bom(content, subject=str(path))


def read_bom(content: bytes, *, subject: str = "the document") -> BillOfMaterials:
    """Read a document from its bytes; ``subject`` is its name in errors.

    Raises:
        InputError: If the document is not CycloneDX 1.4 to 1.7 in JSON.
    """
    excess = DOCUMENT.excess(n_bytes=len(content), n_items=json_weight(content), of="values")
    if excess is not None:
        raise InputError(f"is too large: it {excess}", subject=subject)
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        raise InputError("is XML; convert it to CycloneDX JSON first, for example with cyclonedx-cli", subject=subject)
    try:
        body = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        raise InputError(f"is not JSON: {visible_text(str(exc), length=200)}", subject=subject) from exc
    form = body.get("bomFormat") if isinstance(body, dict) else None
    if not isinstance(body, dict) or form != "CycloneDX":
        raise InputError(f"expected a document with bomFormat CycloneDX, got {form!r:.60}", subject=subject)
    version = body.get("specVersion")
    if version not in VERSIONS:
        raise InputError(
            f"expected CycloneDX {VERSIONS[0]} to {VERSIONS[-1]}, got specVersion {version!r:.40}", subject=subject
        )
    metadata = _object(body.get("metadata"))
    models: dict[ListedModel, None] = {}
    claims: dict[StatedBase, None] = {}
    for component, parent in _components([metadata.get("component"), *_list(body.get("components"))], subject):
        listed = _listed(component)
        if not _is_model(component):
            continue
        if listed.repo is None and parent is not None and _is_model(parent):
            whole = _listed(parent)
            claims.update((replace(claim, part=listed.name), None) for claim in _claims(component, whole))
            continue
        models[listed] = None
        claims.update(dict.fromkeys(_claims(component, listed)))
    return BillOfMaterials(
        version=str(version), tools=_tools(metadata.get("tools")), models=tuple(models), claims=tuple(claims)
    )


def linked_bom(path: Path, repo: str) -> LinkedBom:
    """Read a bill of materials, from ``verify REPO --bom`` or ``family REPO --bom``, for a card to link to.

    Raises:
        InputError: If the file is unreadable, from another program, or about another model.
    """
    subject = str(path)
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot be read: {exc.strerror}", subject=subject) from exc
    document = read_bom(content, subject=subject)
    if not any(tool.split(" ")[0] == "mdir-hf" for tool in document.tools):
        raise InputError(
            "was not written by mdir-hf, and a card may only name checked bases; write one with "
            f"`mdir-hf verify {repo} --bom FILE`",
            subject=subject,
        )
    name = repo.removeprefix("hf://models/").partition("@")[0].lower()
    models = [model.repo or model.name for model in document.models]
    if name not in (model.lower() for model in models):
        raise InputError(f"is about {', '.join(models) or 'no model'}, not about {repo}", subject=subject)
    component = json.loads(content)["components"][0]
    notes = str(component.get("pedigree", {}).get("notes") or "No base is declared, and none was found.")
    return LinkedBom(content, f"Bases compared by their weights: {notes.rstrip('.').replace('. ', '; ')}.")


def _components(components: Sequence[object], subject: str) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    waiting: list[tuple[object, dict[str, Any] | None, int]] = [(entry, None, 0) for entry in reversed(components)]
    n_seen = 0
    while waiting:
        component, parent, depth = waiting.pop()
        if not isinstance(component, dict):
            continue
        n_seen += 1
        if n_seen > _MOST_COMPONENTS:
            raise InputError(f"lists more than {_MOST_COMPONENTS:,} components", subject=subject)
        yield component, parent
        if depth < _DEEPEST:
            nested = reversed(_list(component.get("components")))
            waiting.extend((entry, component, depth + 1) for entry in nested)


def _is_model(component: dict[str, Any]) -> bool:
    """Return whether a component is a model, according to its type or, in version 1.4, its package URL."""
    if component.get("type") == MODEL:
        return True
    return component.get("type") not in ("file", "data") and _hub_purl(component.get("purl")) is not None


def _claims(component: dict[str, Any], listed: ListedModel, depth: int = 0) -> Iterator[StatedBase]:
    for ancestor in _list(_object(component.get("pedigree")).get("ancestors")):
        if isinstance(ancestor, dict):
            base = _listed(ancestor)
            yield StatedBase(model=listed, base=base, stated_in="pedigree.ancestors")
            if depth < _DEEPEST:
                yield from _claims(ancestor, base, depth + 1)
    card = _object(component.get("modelCard"))
    for stated_in, properties in (("modelCard.properties", card), ("properties", component)):
        for entry in _list(properties.get("properties")):
            name, value = _object(entry).get("name"), _object(entry).get("value")
            if not isinstance(name, str) or not isinstance(value, str):
                continue
            if name.rsplit(":", 1)[-1].lower() in _BASE_FIELDS:
                for text in re.split(r"[,\s\[\]'\"]+", value[:10_000]):
                    if text:
                        yield StatedBase(model=listed, base=_of_text(text), stated_in=stated_in)


def _listed(component: dict[str, Any]) -> ListedModel:
    purl = _hub_purl(component.get("purl"))
    repo, version = purl if purl is not None else (_repo_of_names(component), None)
    version = version or component.get("version")
    hashes = [component, *filter(_is_weight_file, map(_object, _list(component.get("components"))))]
    name = component.get("name")
    return ListedModel(
        name=visible_text(name, length=120) if isinstance(name, str) and name else "(no name)",
        repo=repo,
        commit=_commit(version),
        hashes=tuple(dict.fromkeys(digest for part in hashes for digest in _hashes(part))),
    )


def _is_weight_file(component: dict[str, Any]) -> bool:
    return component.get("type") == "file" and str(component.get("name")).lower().endswith(WEIGHT_SUFFIXES)


def _hub_purl(purl: object) -> tuple[str, str | None] | None:
    if not isinstance(purl, str) or not purl.lower().startswith("pkg:huggingface/"):
        return None
    path = purl[len("pkg:huggingface/") :].split("#")[0].split("?")[0]
    path, _, version = path.partition("@")
    repo = unquote(path).strip("/")
    return (repo, unquote(version) or None) if is_repo_id(repo) else None


def _repo_of_names(component: dict[str, Any]) -> str | None:
    for reference in _list(component.get("externalReferences")):
        repo = _repo_of_address(_object(reference).get("url"))
        if repo is not None:
            return repo
    if component.get("purl") is not None:
        return None  # a package URL of another kind: its group is not an owner on the Hub
    group, name = component.get("group"), component.get("name")
    for text in (f"{group}/{name}" if group else None, name):
        if isinstance(text, str) and text.count("/") == 1 and is_repo_id(text):
            return text
    return None


def _repo_of_address(url: object) -> str | None:
    if not isinstance(url, str) or len(url) > 2000:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or parts.hostname not in _HUB_HOSTS:
        return None
    steps = [step for step in unquote(parts.path).split("/") if step]
    if len(steps) < 2 or steps[0] in ("datasets", "spaces", "api", "papers", "collections", "docs", "blog"):
        return None
    repo = "/".join(steps[:2])
    return repo if is_repo_id(repo) else None


def _of_text(text: str) -> ListedModel:
    purl = _hub_purl(text)
    repo = purl[0] if purl is not None else _repo_of_address(text) or (text if is_repo_id(text) else None)
    return ListedModel(
        name=visible_text(text, length=120) or "(no name)", repo=repo, commit=_commit(purl[1] if purl else None)
    )


def _commit(version: object) -> str | None:
    text = version.lower() if isinstance(version, str) else ""
    return text if COMMIT.fullmatch(text) or _SHORT_COMMIT.fullmatch(text) else None


def _hashes(component: dict[str, Any]) -> Iterator[str]:
    for entry in _list(component.get("hashes")):
        algorithm, content = _object(entry).get("alg"), _object(entry).get("content")
        if algorithm == "SHA-256" and isinstance(content, str) and _SHA256.fullmatch(content.lower()):
            yield content.lower()


def _tools(tools: object) -> tuple[str, ...]:
    tool_entries = _list(tools) or _list(_object(tools).get("components"))
    tool_names = []
    for tool in map(_object, tool_entries[:20]):
        words = [text for key in ("name", "version") if isinstance(text := tool.get(key), str)]
        if words:
            tool_names.append(visible_text(" ".join(words), length=80))
    return tuple(tool_names)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
