"""What a person types to name a model: a repo id, a Hub address, a folder, a weight file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from mdir_hf.errors import InvalidReferenceError
from mdir_hf.hub.endpoint import hub_hosts

WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")
"""File names that name a model by themselves."""

_NAMES = "accepted are owner/name, owner/name@revision, owner/name/file.gguf,"
_ADDRESS = "a Hub address such as https://huggingface.co/owner/name"
_ACCEPTED_ON_THE_HUB = f"{_NAMES} or {_ADDRESS}"
_ACCEPTED = (
    f"{_NAMES} {_ADDRESS}, a local folder, or a local weight file "
    "(.safetensors, .bin or their .index.json, .pth, .pt, .gguf)"
)
_HUB_ONLY = "folders and files of this machine are not read here"
_OTHER_KINDS = {"datasets": "a dataset", "spaces": "a Space", "kernels": "a kernel", "buckets": "a bucket"}
_NOT_OWNERS = frozenset(
    {"api", "blog", "collections", "docs", "join", "learn", "login", "papers", "posts", "settings", "tasks"}
)
_LOOKS_LIKE_A_PATH = re.compile(r"^(\.{1,2}($|[/\\])|[/~\\]|[A-Za-z]:[/\\])|\\")


@dataclass(frozen=True, slots=True)
class Reference:
    """A model as named by a person; nothing has been looked up on the Hub yet.

    Attributes:
        text: What was typed.
        repo_id: ``owner/name`` or a single-word id; None for something local.
        revision: Branch, tag or commit named in the text, else None.
        subfolder: Folder inside the repository, ``/``-separated, empty for its root.
        file: The one weight file named, relative to ``subfolder`` (or to ``folder``), else None.
        folder: The local folder, absolute; None for the Hub.
    """

    text: str
    repo_id: str | None = None
    revision: str | None = None
    subfolder: str = ""
    file: str | None = None
    folder: Path | None = None


def parse_reference(reference: str | os.PathLike[str], *, allow_local: bool = True) -> Reference:
    r"""Say which repository, folder or file a text names.

    Something that exists on this disk wins over a repo id of the same name; a text that looks like a path
    (``./x``, ``/x``, ``~/x``, ``C:\x``) or a weight file is never taken for a repo id.

    Args:
        reference: ``owner/name``, ``name``, either with ``@revision``, ``owner/name/file.gguf``, a Hub address (also
            ``hf://``), a folder, or a weight file.
        allow_local: False where strangers choose the name: only the Hub is meant then, this disk is not looked at, and
            no message tells what is on it.

    Raises:
        InvalidReferenceError: If it is none of these, or names a path that does not exist.

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
    looks_like_a_path = _LOOKS_LIKE_A_PATH.search(text) is not None
    if looks_like_a_path and not allow_local:
        _refuse(text, _HUB_ONLY)
    if looks_like_a_path or (allow_local and _exists(Path(text))):
        return _local(text)
    if text.lower().endswith((".gguf", ".pth")) and text.count("/") > 1:
        return _hub_uri(f"hf://{text}", text)  # one of the quantisations, or of the models (RWKV), in a repository
    if allow_local and text.lower().endswith(WEIGHT_SUFFIXES) and text.count("/") != 1:
        return _local(text)
    repo_id, _, revision = text.partition("@")
    if "@" in text and not revision:
        _refuse(text, "nothing follows the @")
    return Reference(text, _valid_repo_id(repo_id.rstrip("/"), text), revision or None)


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
            _refuse(text, f"{path.name} is a file, but not a weight file")
        # The parent is resolved, the file is not: in the Hub's cache it is a link whose siblings lie beside the link.
        return Reference(text, file=path.name, folder=Path(os.path.realpath(path.parent)))
    kind = "file" if path.suffix and text.lower().endswith(WEIGHT_SUFFIXES) else "folder"
    _refuse(text, f"no such {kind}")


def _exists(path: Path) -> bool:
    try:
        return path.is_dir() or (path.is_file() and path.name.lower().endswith(WEIGHT_SUFFIXES))
    except OSError:  # a name too long for this disk is not a file on it
        return False


def _hub_uri(uri: str, text: str) -> Reference:
    segments = _of_a_model(uri[len("hf://") :].strip("/").split("/"), text)
    name, _, revision = "/".join(segments[:2]).partition("@")
    return _with_place(text, _valid_repo_id(name, text), unquote(revision) or None, segments[2:], is_file=None)


def _of_a_model(segments: list[str], text: str) -> list[str]:
    kind = segments[0] if segments else ""
    if kind in _OTHER_KINDS:
        _refuse(text, f"it names {_OTHER_KINDS[kind]}, not a model")
    return segments[1:] if kind == "models" else segments


def _hub_url(text: str) -> Reference:
    parts = urlsplit(text if "://" in text else f"https://{text}")
    if parts.scheme not in ("http", "https") or parts.netloc.rpartition("@")[2].lower() not in hub_hosts():
        _refuse(text, "its host is not the Hub's (set HF_ENDPOINT for a mirror)")
    segments = _of_a_model([unquote(segment) for segment in parts.path.split("/") if segment], text)
    if not segments or segments[0] in _NOT_OWNERS:
        _refuse(text, "the address names no model")
    page_words = ("tree", "blob", "resolve", "raw", "commit", "commits", "discussions", "blame")
    n_name = 1 if len(segments) == 1 or segments[1] in page_words else 2
    repo_id, _, revision = "/".join(segments[:n_name]).partition("@")
    repo_id = _valid_repo_id(repo_id, text)
    page, rest = (segments[n_name], segments[n_name + 1 :]) if len(segments) > n_name else ("", [])
    if page in ("tree", "blob", "resolve", "raw", "commit", "commits", "blame") and rest:
        # refs/pr/1 and refs/convert/parquet are the only branch names with a slash that the Hub itself makes.
        n_revision = 3 if rest[0] == "refs" and len(rest) >= 3 else 1
        revision, rest = "/".join(rest[:n_revision]), rest[n_revision:]
    elif page:
        rest = []
    return _with_place(text, repo_id, revision or None, rest, is_file=None if page == "tree" else page != "")


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
