"""Parses the name of a model: a repo id, a Hub URL, a folder, a weight file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from mdir_hf.errors import InvalidReferenceError
from mdir_hf.local_paths import WEIGHT_SUFFIXES, looks_like_a_path, missing_path, names_beside
from mdir_hf.model.hub.endpoint import hub_hosts, path_on_hub
from mdir_hf.model.hub.file_kinds import kind_of_file

_WEIGHT_FILES = ".safetensors, .bin or their .index.json, .pth, .pt, .gguf, .onnx"
_NAMES = "accepted are owner/name, owner/name@revision, owner/name/folder, owner/name/file.gguf, owner/name:Q4_K_M,"
_ADDRESS = "a Hub address such as https://huggingface.co/owner/name"
_ACCEPTED_ON_THE_HUB = f"{_NAMES} or {_ADDRESS}"
_ACCEPTED = f"{_NAMES} {_ADDRESS}, a local folder, or a local weight file ({_WEIGHT_FILES})"
_HUB_ONLY = "folders and files of this machine are not read here"
_OTHER_KINDS = {"datasets": "a dataset", "spaces": "a Space", "kernels": "a kernel", "buckets": "a bucket"}
_NOT_OWNERS = frozenset(
    {"api", "blog", "collections", "docs", "join", "learn", "login", "papers", "posts", "settings", "tasks"}
)
_VARIANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Reference:
    """A model as named by a person; nothing has been looked up on the Hub yet.

    Attributes:
        text: What was typed.
        repo_id: ``owner/name`` or a single-word id; None for something local.
        revision: Branch, tag or commit named in the text, else None.
        subfolder: Folder inside the repository, ``/``-separated, empty for its root.
        file: The one weight file named, relative to ``subfolder`` (or to ``folder``), else None.
        variant: Which of several quantisations, as in ``owner/name:Q4_K_M``; None where none is named.
        folder: The local folder, absolute; None for the Hub.
    """

    text: str
    repo_id: str | None = None
    revision: str | None = None
    subfolder: str = ""
    file: str | None = None
    variant: str | None = None
    folder: Path | None = None


def parse_reference(reference: str | os.PathLike[str], *, allow_local: bool = True) -> Reference:
    r"""Say which repository, folder or file a text names.

    What exists on this disk is never asked of the Hub; a text that looks like a path (``./x``, ``/x``, ``~/x``,
    ``C:\x``), a weight file, or something in a folder that exists is never taken for a repo id.

    Args:
        reference: ``owner/name``, ``name``, either with ``@revision``, and of a repository with several quantisations
            with ``:Q4_K_M``, as llama.cpp and ollama write it; ``owner/name/folder``, ``owner/name/file.gguf``, a Hub
            address (also ``hf://``), a folder, or a weight file.
        allow_local: False where strangers choose the name: only the Hub is meant then, this disk is not looked at, and
            no message tells what is on it.

    Raises:
        InvalidReferenceError: If it is something else, or names a path that does not exist.

    Cost: a few ``stat`` calls; no network.
    """
    try:
        return _parse(reference, allow_local)
    except InvalidReferenceError as exc:
        if allow_local:
            raise
        raise InvalidReferenceError(exc.message.replace(_ACCEPTED, _ACCEPTED_ON_THE_HUB)) from exc.__cause__


def _parse(reference: str | os.PathLike[str], allow_local: bool) -> Reference:
    if isinstance(reference, os.PathLike):
        return _local(os.fspath(reference)) if allow_local else _refuse(os.fspath(reference), _HUB_ONLY)
    if not isinstance(reference, str):
        raise InvalidReferenceError(
            f"a model is named by a text or a path, not by {type(reference).__name__}; {_ACCEPTED}"
        )
    text = reference.strip()
    if not text or "\0" in text:
        raise InvalidReferenceError(f"the name of the model is empty; {_ACCEPTED}")
    if text.lower().startswith("hf://"):
        return _hub_uri(text, text)
    if "://" in text or text.split("/", 1)[0].lower() in hub_hosts():
        return _hub_url(text)
    is_path = looks_like_a_path(text)
    if is_path and not allow_local:
        _refuse(text, _HUB_ONLY)
    if is_path or (allow_local and _is_on_disk(text)):
        return _local(text)
    is_weights = text.lower().endswith(WEIGHT_SUFFIXES)
    is_of_a_repository = text.lower().endswith(
        (".gguf", ".pth", ".onnx")
    )  # quantisations, or models (RWKV), in one repository
    # After an @ everything is the revision, which may hold a slash, unless a file is named.
    is_in_a_repository = is_of_a_repository or not (is_weights or "@" in text)
    if text.strip("/").count("/") > 1 and is_in_a_repository:
        return _hub_uri(f"hf://{text}", text)
    if allow_local and is_weights and text.count("/") != 1:
        return _local(text)
    return _of_name(text.rstrip("/"), [], text)


def _local(text: str) -> Reference:
    path = Path(text).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError:
        is_folder = is_file = False
    if is_folder:
        return Reference(text, folder=Path(os.path.realpath(path)))
    if is_file:
        if not path.name.lower().endswith(WEIGHT_SUFFIXES):
            may_be_a_name = not path.suffix and not looks_like_a_path(text)
            or_else = f"; hf://{text} names the repository on the Hub" if may_be_a_name else ""
            raise InvalidReferenceError(
                f"not a checkpoint: {kind_of_file(path)}; expected a folder, or one of {_WEIGHT_FILES}{or_else}",
                subject=text,
            )
        # The parent is resolved, the file is not: in the Hub's cache it is a link whose siblings lie beside the link.
        return Reference(text, file=path.name, folder=Path(os.path.realpath(path.parent)))
    raise missing_path(text)


def _is_on_disk(text: str) -> bool:
    """Tell whether a text names what exists, or something below a folder ``a/b`` that exists."""
    first, second, *below = [*text.split("/"), "", ""]
    try:
        return Path(text).exists() or (any(below) and Path(first, second).is_dir())
    except OSError:  # a name too long for this disk is not a file on it
        return False


def folders_like(text: str) -> list[str]:
    """Folders and weight files of this disk in whose place a text would lie, spelt as the text is."""
    return [name for name in names_beside(text) if Path(name).is_dir() or name.lower().endswith(WEIGHT_SUFFIXES)]


def _hub_uri(uri: str, text: str) -> Reference:
    segments = _of_a_model(uri[len("hf://") :].strip("/").split("/"), text)
    n_name = 2
    if len(segments) > 1 and segments[1].endswith("@refs"):
        n_name += _n_of_ref(["refs", *segments[2:]]) - 1
    return _of_name("/".join(segments[:n_name]), segments[n_name:], text)


def _n_of_ref(segments: list[str]) -> int:
    """How many segments the revision takes: refs/pr/1 and refs/convert/parquet are those with a slash of the Hub's."""
    return 3 if segments[0] == "refs" and len(segments) >= 3 else 1


def _of_name(name: str, rest: list[str], text: str) -> Reference:
    """Take ``owner/name@revision:variant`` apart; none of the three can hold an @ or a colon."""
    name, colon, variant = name.partition(":")
    repo_id, at, revision = name.partition("@")
    revision = unquote(revision)  # a slash is written %2F in front of a path
    if at and not revision:
        _refuse(text, "nothing follows the @")
    if not colon:
        return _with_place(text, _valid_repo_id(repo_id, text), revision or None, rest, is_file=None)
    if _VARIANT.fullmatch(variant) is None or (rest and variant.lower().endswith(".gguf")):
        _refuse(text, "what follows the colon is not a quantisation such as Q4_K_M")
    if variant.lower().endswith(".gguf"):  # ollama takes a whole file name, too
        rest, variant = [variant], ""
    found = _with_place(text, _valid_repo_id(repo_id, text), revision or None, rest, is_file=None)
    # What ollama writes where none is meant.
    return found if not variant or variant.lower() == "latest" else replace(found, variant=variant)


def _of_a_model(segments: list[str], text: str) -> list[str]:
    kind = segments[0] if segments else ""
    if kind in _OTHER_KINDS:
        _refuse(text, f"it names {_OTHER_KINDS[kind]}, not a model")
    return segments[1:] if kind == "models" else segments


def _hub_url(text: str) -> Reference:
    path = path_on_hub(text, may_name_user=True)
    if path is None:
        _refuse(text, "its host is not the Hub's, or it does not lie below HF_ENDPOINT (set that for a mirror)")
    segments = _of_a_model([unquote(segment) for segment in path.split("/") if segment], text)
    if not segments or segments[0] in _NOT_OWNERS:
        _refuse(text, "the address names no model")
    page_words = ("tree", "blob", "resolve", "raw", "commit", "commits", "discussions", "blame")
    n_name = 1 if len(segments) == 1 or segments[1] in page_words else 2
    named = _of_name("/".join(segments[:n_name]), [], text)
    revision = named.revision or ""
    page, rest = (segments[n_name], segments[n_name + 1 :]) if len(segments) > n_name else ("", [])
    if page in ("tree", "blob", "resolve", "raw", "commit", "commits", "blame") and rest:
        n_revision = _n_of_ref(rest)
        revision, rest = "/".join(rest[:n_revision]), rest[n_revision:]
    elif page:
        rest = []
    if not rest:
        return replace(named, revision=revision or None)
    assert named.repo_id is not None
    return _with_place(text, named.repo_id, revision or None, rest, is_file=None if page == "tree" else page != "")


def _with_place(text: str, repo_id: str, revision: str | None, rest: list[str], *, is_file: bool | None) -> Reference:
    """Split what follows the revision into a subfolder and, where a weight file is named, that file."""
    file = None
    if rest and (is_file or (is_file is None and rest[-1].lower().endswith(WEIGHT_SUFFIXES))):
        name, rest = rest[-1], rest[:-1]
        file = name if name.lower().endswith(WEIGHT_SUFFIXES) else None  # a link to the card means the model
    if any(segment in (".", "..") or "\\" in segment for segment in rest):
        _refuse(text, "its folder leaves the repository")
    return Reference(text, repo_id, revision, "/".join(rest), file)


def _valid_repo_id(repo_id: str, text: str) -> str:
    try:
        validate_repo_id(repo_id)
    except HFValidationError as exc:
        raise InvalidReferenceError(f"{text!r} does not name a model; {_ACCEPTED}") from exc
    return repo_id


def _refuse(text: str, why: str) -> NoReturn:
    raise InvalidReferenceError(f"{text!r} does not name a model: {why}; {_ACCEPTED}")
