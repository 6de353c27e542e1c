"""Read a third party's CycloneDX document: the models that it lists and their stated bases.

The document is untrusted JSON, so its size is limited. The reader of cyclonedx-python-lib drops model cards, so it is
not used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mdir_hf.budgets import Budget, collector_paused, json_weight
from mdir_hf.errors import InputError
from mdir_hf.names import is_repo_id, visible_text
from mdir_hf.regular_file import open_regular

DOCUMENT = Budget(16 << 20, 2 << 20)
"""Documents with tens of thousands of components take about 10 MB."""

VERSIONS = ("1.4", "1.5", "1.6", "1.7")
MODEL = "machine-learning-model"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".ckpt", ".onnx", ".onnx_data")
"""Suffixes of weight files, in the order in which a model is loaded from them."""

_MOST_COMPONENTS = 100_000
_MOST_BASES = 100_000
_LONGEST_ADDRESS = 2000
_LONGEST_VALUE = 10_000
_BASE_FIELDS = ("base_model", "base_models", "basemodel")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT_COMMIT = re.compile(r"(?=[0-9]*[a-f])[0-9a-f]{7,39}")
"""Abbreviated commits. Digits alone are not accepted: they may be a date."""
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_HUB_PURL = "pkg:huggingface/"
_NOT_MODELS = ("file", "data")
_KINDS = {"pedigree.variants": "variant", "pedigree.descendants": "descendant"}
PEDIGREE_FIELDS = ("pedigree.ancestors", *_KINDS)


@dataclass(frozen=True, slots=True)
class StatedDigest:
    """A digest that a document states.

    Attributes:
        file: Path of the file in its repository; None if the digest is stated of the model as a whole.
        algorithm: Name of the algorithm, such as ``SHA-256``.
        content: The digest in lower case.
    """

    file: str | None
    algorithm: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListedModel:
    """A model in a document. Equal entries are one object, so it is compared by identity.

    Attributes:
        name: Printable name.
        repo: Repo id on the Hub, or None.
        commit: Full or abbreviated commit, or None.
        version: The stated version if it is not a commit, or None.
        has_two_commits: Whether the version and the package URL state different commits, so that none is stated.
        digests: Stated digests of the model and of its files.
        why_no_repo: Why ``repo`` is None, or an empty string.
    """

    name: str
    repo: str | None
    commit: str | None
    version: str | None = None
    has_two_commits: bool = False
    digests: tuple[StatedDigest, ...] = ()
    why_no_repo: str = ""

    def __str__(self) -> str:
        return self.name if self.repo is None else self.repo + (f"@{self.commit[:8]}" if self.commit else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedBase:
    """A document's claim that one model is the base of another, or another relative.

    Attributes:
        stated_in: Field that contains the claim: ``modelCard.properties``, ``properties``, or one of
            :data:`PEDIGREE_FIELDS`.
        part: Part of the model that the claim is about; None for the whole model.
    """

    model: ListedModel
    base: ListedModel
    stated_in: str
    part: str | None = None

    @property
    def kind(self) -> str:
        """``base``, or ``variant`` or ``descendant``, for which only shared weights are stated."""
        return _KINDS.get(self.stated_in, "base")


@dataclass(frozen=True, slots=True, kw_only=True)
class BillOfMaterials:
    """The parts of a document that are about models.

    Attributes:
        tools: Tools that wrote the document.
        loose_digests: Digests of weight files that are listed outside of any model.
    """

    version: str
    tools: tuple[str, ...]
    models: tuple[ListedModel, ...]
    claims: tuple[StatedBase, ...]
    loose_digests: tuple[StatedDigest, ...] = ()


def read_bom_file(path: Path) -> BillOfMaterials:
    """Read a document from a file.

    Raises:
        InputError: If the path is not a regular file that can be read, or not CycloneDX 1.4 to 1.7 in JSON.
    """
    return read_bom(bom_bytes(path), subject=str(path))


def bom_bytes(path: Path) -> bytes:
    """Return the bytes of a document.

    Raises:
        InputError: If the path is not a regular file that can be read, or the file is too large.
    """
    subject = str(path)
    try:
        with open_regular(path) as file:
            _expect_size(subject, n_bytes=os.fstat(file.fileno()).st_size)
            content = file.read(DOCUMENT.n_bytes + 1)
    except OSError as exc:
        raise InputError(f"cannot be read: {exc.strerror}", subject=subject) from exc
    _expect_size(subject, n_bytes=len(content))
    return content


def _expect_size(subject: str, **counts: int) -> None:
    excess = DOCUMENT.excess(**counts, of="values")
    if excess is not None:
        raise InputError(f"is too large: it {excess}", subject=subject)


def read_bom(content: bytes, *, subject: str = "the document") -> BillOfMaterials:
    """Read a document from its bytes; ``subject`` is its name in errors.

    Raises:
        InputError: If the document is not CycloneDX 1.4 to 1.7 in JSON.
    """
    _expect_size(subject, n_bytes=len(content), n_items=json_weight(content))
    start = content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        raise InputError("is empty", subject=subject)
    if start.startswith(b"<"):
        raise InputError("is XML; convert it to CycloneDX JSON first, for example with cyclonedx-cli", subject=subject)
    if start.startswith(b"SPDXVersion:"):
        raise InputError(_SPDX, subject=subject)
    try:
        with collector_paused():
            body = json.loads(content.decode("utf-8-sig"))
    except RecursionError as exc:
        raise InputError("is nested too deeply", subject=subject) from exc
    except ValueError as exc:
        raise InputError(f"is not JSON: {visible_text(str(exc), length=200)}", subject=subject) from exc
    if not isinstance(body, dict) or body.get("bomFormat") != "CycloneDX":
        raise InputError(_why_not_cyclonedx(body), subject=subject)
    version = body.get("specVersion")
    if version not in VERSIONS:
        raise InputError(
            f"expected CycloneDX {VERSIONS[0]} to {VERSIONS[-1]}, got specVersion {version!r:.40}", subject=subject
        )
    walk = _Walk(subject)
    models, claims = walk.of(body)
    return BillOfMaterials(
        version=str(version),
        tools=_tools(_object(body.get("metadata")).get("tools")),
        models=models,
        claims=claims,
        loose_digests=tuple(walk.loose_digests),
    )


_SPDX = "is an SPDX document; mdir-hf reads CycloneDX in JSON, so ask the tool that wrote it for CycloneDX"


def _why_not_cyclonedx(body: object) -> str:
    if not isinstance(body, dict):
        return "is JSON, but not a bill of materials: expected an object with bomFormat CycloneDX"
    context = body.get("@context")
    if "spdxVersion" in body or (isinstance(context, str) and "spdx.org" in context[:_LONGEST_ADDRESS]):
        return _SPDX
    form = body.get("bomFormat")
    if form is None:
        return "is JSON, but not a CycloneDX bill of materials: it has no bomFormat"
    return f"is not a CycloneDX bill of materials: its bomFormat is {form!r:.60}"


@dataclass(slots=True, eq=False)
class _Draft:
    """A model while its document is being read."""

    name: str
    repo: str | None
    commit: str | None
    version: str | None
    why_no_repo: str
    has_two_commits: bool = False
    is_listed: bool = False
    is_base: bool = False
    digests: dict[StatedDigest, None] = field(default_factory=dict)

    @property
    def key(self) -> tuple[object, ...]:
        """The facts that make two entries one."""
        return (
            self.name,
            self.repo,
            self.commit,
            self.version,
            self.why_no_repo,
            self.has_two_commits,
            tuple(self.digests),
        )

    def frozen(self) -> ListedModel:
        """Return the finished model."""
        return ListedModel(
            name=self.name,
            repo=self.repo,
            commit=self.commit,
            version=self.version,
            has_two_commits=self.has_two_commits,
            digests=tuple(self.digests),
            why_no_repo=self.why_no_repo,
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """A component that waits to be read.

    Attributes:
        owner: The model that encloses it, or whose relative it is.
        stated_in: The field that states the relative, or None.
        part: The part of the owner that states the relative.
    """

    component: object
    owner: _Draft | None = None
    stated_in: str | None = None
    part: str | None = None


class _Walk:
    """Collects the models and claims of a document, in its order and without recursion."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._drafts: list[_Draft] = []
        self._claims: list[tuple[_Draft, _Draft, str, str | None]] = []
        self._waiting: list[_Place] = []
        self.loose_digests: dict[StatedDigest, None] = {}

    def of(self, body: dict[str, Any]) -> tuple[tuple[ListedModel, ...], tuple[StatedBase, ...]]:
        """Return the listed models and the stated bases of a document."""
        roots = (_object(body.get("metadata")).get("component"), *_nested(body))
        self._waiting = [_Place(root) for root in reversed(roots)]
        n_components = 0
        while self._waiting:
            place = self._waiting.pop()
            if not isinstance(place.component, dict):
                continue
            n_components += place.stated_in is None
            if n_components > _MOST_COMPONENTS:
                raise InputError(f"lists more than {_MOST_COMPONENTS:,} components", subject=self._subject)
            self._read(place, place.component)
        frozen: dict[tuple[object, ...], ListedModel] = {}
        models = {id(draft): frozen.setdefault(draft.key, draft.frozen()) for draft in self._drafts}
        claims = dict.fromkeys(
            StatedBase(model=models[id(model)], base=models[id(base)], stated_in=stated_in, part=part)
            for model, base, stated_in, part in self._claims
        )
        listed = dict.fromkeys(models[id(draft)] for draft in self._drafts if draft.is_listed)
        return tuple(listed), tuple(claims)

    def _read(self, place: _Place, component: dict[str, Any]) -> None:
        owner = place.owner
        if place.stated_in is not None and owner is not None:
            base = self._add(_draft_of(component))
            base.is_base = True
            self._claim(owner, base, place.stated_in, place.part)
            self._read_statements(component, base, None)
            owner = base
        elif _is_model(component):
            draft = _draft_of(component)
            if owner is not None and draft.repo is None:
                self._read_statements(component, owner, draft.name)
            else:
                draft.is_base = owner is not None and owner.is_base
                draft.is_listed = not draft.is_base
                owner = self._add(draft)
                self._read_statements(component, owner, None)
        else:
            name = _text(component.get("name"))
            is_weight_file = name.lower().endswith(WEIGHT_SUFFIXES)
            if is_weight_file or (owner is not None and component.get("type") == "file"):
                digests = self.loose_digests if owner is None else owner.digests
                digests.update(dict.fromkeys(_digests(component, name)))
        self._waiting += [_Place(nested, owner) for nested in reversed(_nested(component))]

    def _read_statements(self, component: dict[str, Any], owner: _Draft, part: str | None) -> None:
        """Read the digests and bases that a model or a part of it states."""
        owner.digests.update(dict.fromkeys(_digests(component, part)))
        card = _object(component.get("modelCard"))
        for stated_in, properties in (("modelCard.properties", card), ("properties", component)):
            for text in self._base_texts(properties):
                self._claim(owner, self._add(_draft_of_text(text)), stated_in, part)
        for stated_in in reversed(PEDIGREE_FIELDS):
            relatives = _list(_object(component.get("pedigree")).get(stated_in.removeprefix("pedigree.")))
            self._waiting += [_Place(relative, owner, stated_in, part) for relative in reversed(relatives)]

    def _base_texts(self, properties: dict[str, Any]) -> Iterator[str]:
        for entry in _list(properties.get("properties")):
            name, value = _object(entry).get("name"), _object(entry).get("value")
            if not isinstance(name, str) or not isinstance(value, str):
                continue
            if name.rsplit(":", 1)[-1].lower() in _BASE_FIELDS:
                if len(value) > _LONGEST_VALUE:
                    raise InputError(
                        f"has a base_model of {len(value):,} characters; the limit is {_LONGEST_VALUE:,}",
                        subject=self._subject,
                    )
                yield from filter(None, re.split(r"[,\s\[\]'\"]+", value))

    def _add(self, draft: _Draft) -> _Draft:
        self._drafts.append(draft)
        return draft

    def _claim(self, model: _Draft, base: _Draft, stated_in: str, part: str | None) -> None:
        self._claims.append((model, base, stated_in, part))
        if len(self._claims) > _MOST_BASES:
            raise InputError(f"states more than {_MOST_BASES:,} bases", subject=self._subject)


def _nested(component: dict[str, Any]) -> list[Any]:
    return [*_list(component.get("components")), *_list(component.get("services"))]


def _is_model(component: dict[str, Any]) -> bool:
    """Return whether a component is a model, according to its type, its model card, or its package URL."""
    if component.get("type") == MODEL or "modelCard" in component:
        return True
    return component.get("type") not in _NOT_MODELS and _is_hub_purl(component.get("purl"))


def _is_hub_purl(purl: object) -> bool:
    return isinstance(purl, str) and purl[: len(_HUB_PURL)].lower() == _HUB_PURL


def _draft_of(component: dict[str, Any]) -> _Draft:
    purl = component.get("purl")
    if _is_hub_purl(purl):
        repo, purl_version, why = _of_purl(str(purl))
    else:
        repo, purl_version, why = _repo_of_names(component), None, "the document names no repository on the Hub"
    versions = dict.fromkeys(
        text for text in (purl_version, component.get("version")) if isinstance(text, str) and text
    )
    commits = [text.lower() for text in versions if _is_commit(text.lower())]
    is_contradictory = (
        len(commits) > 1 and not commits[0].startswith(commits[1]) and not commits[1].startswith(commits[0])
    )
    commit = None if is_contradictory or not commits else max(commits, key=len)
    version = None if commit is not None else " and ".join(visible_text(text, length=60) for text in versions) or None
    why = "" if repo is not None else why
    return _Draft(_name(component.get("name")), repo, commit, version, why, is_contradictory)


def _draft_of_text(text: str) -> _Draft:
    version, why = None, "it does not name a repository on the Hub"
    if _is_hub_purl(text):
        repo, version, why = _of_purl(text)
    else:
        repo = _repo_of_address(text) or (text if is_repo_id(text) else None)
    is_commit = version is not None and _is_commit(version.lower())
    return _Draft(
        _name(text),
        repo,
        version.lower() if version is not None and is_commit else None,
        None if version is None or is_commit else visible_text(version, length=60),
        "" if repo is not None else why,
    )


def _is_commit(text: str) -> bool:
    return _COMMIT.fullmatch(text) is not None or _SHORT_COMMIT.fullmatch(text) is not None


def _name(value: object) -> str:
    return (visible_text(value, length=120) if isinstance(value, str) else "") or "(no name)"


def _of_purl(purl: str) -> tuple[str | None, str | None, str]:
    """Return repository and version of a package URL, and why there is no repository."""
    if len(purl) > _LONGEST_ADDRESS:
        return None, None, f"its package URL has {len(purl):,} characters; the limit is {_LONGEST_ADDRESS:,}"
    path, _, qualifiers = purl[len(_HUB_PURL) :].partition("#")[0].partition("?")
    path, _, version = path.partition("@")
    version = unquote(version)
    for qualifier in qualifiers.split("&"):
        name, _, value = qualifier.partition("=")
        if name.lower() == "repository_url" and not _is_hub_address(unquote(value)):
            host = visible_text(unquote(value), length=120) or "an empty address"
            return None, version or None, f"its package URL is of another host, {host}"
    repo = unquote(path).strip("/")
    if not is_repo_id(repo):
        return None, version or None, "its package URL does not name a repository on the Hub"
    return repo, version or None, ""


def _is_hub_address(address: str) -> bool:
    try:
        parts = urlsplit(address if "://" in address else f"https://{address}")
    except ValueError:
        return False
    return parts.hostname in _HUB_HOSTS and not parts.path.strip("/")


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
    if not isinstance(url, str) or len(url) > _LONGEST_ADDRESS:
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


def _digests(component: dict[str, Any], file: str | None) -> Iterator[StatedDigest]:
    for entry in _list(component.get("hashes")):
        algorithm, content = _object(entry).get("alg"), _object(entry).get("content")
        yield StatedDigest(
            None if file is None else visible_text(file.removeprefix("./"), length=_LONGEST_ADDRESS),
            _text(algorithm)[:20],
            _text(content)[:200].lower(),
        )


def _text(value: object) -> str:
    return visible_text(value, length=_LONGEST_ADDRESS) if isinstance(value, str) else ""


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
