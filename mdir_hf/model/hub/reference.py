"""Parse a model name: a repo id, a Hub URL, a folder or a weight file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

from mdir_hf.errors import InvalidReferenceError
from mdir_hf.model.hub.endpoint import hub_hosts, path_on_hub
from mdir_hf.names import WEIGHT_SUFFIXES, is_repo_id, looks_like_a_path, missing_path, names_beside

_N_LOOKED_AT = 512
_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n", "a PNG"),
    (b"\xff\xd8\xff", "a JPEG"),
    (b"GIF8", "a GIF"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"GGUF", "a GGUF file under another name; let it end in .gguf"),
    (b"version https://git-lfs", "a Git LFS pointer, whose file was not downloaded (`git lfs pull` does it)"),
    (b"\x7fELF", "a program"),
    (b"#!", "a script"),
)


def kind_of_file(path: Path) -> str:
    """Describe a file's content, such as ``a PNG`` or ``an HTML page``."""
    try:
        with path.open("rb") as file:
            head = file.read(_N_LOOKED_AT)
    except OSError as exc:
        return f"a file that cannot be read ({exc.strerror})"
    if not head:
        return "an empty file"
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return kind
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page"
    if b"\0" in head:
        return "a binary file of another kind"
    return "a JSON file" if start.startswith((b"{", b"[")) else "a text file"


_WEIGHT_FILES = ".safetensors, .bin or their .index.json, .pth, .pt, .ckpt, .gguf, .onnx"
_NAMES = "accepted are owner/name, owner/name@revision, owner/name/folder, owner/name/file.gguf, owner/name:Q4_K_M,"
_ADDRESS = "a Hub URL such as https://huggingface.co/owner/name"
_ACCEPTED_ON_THE_HUB = f"{_NAMES} or {_ADDRESS}"
_ACCEPTED = f"{_NAMES} {_ADDRESS}, a local folder, or a local weight file ({_WEIGHT_FILES})"
_HUB_ONLY = "folders and files on this machine are not allowed here"
_OTHER_KINDS = {"datasets": "a dataset", "spaces": "a Space", "kernels": "a kernel", "buckets": "a bucket"}
_NOT_OWNERS = frozenset(
    {"api", "blog", "collections", "docs", "join", "learn", "login", "papers", "posts", "settings", "tasks"}
)
_VARIANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed model name, not yet looked up on the Hub.

    Attributes:
        repo_id: ``owner/name`` or a single-word id; None for local files.
        subfolder: Folder inside the repository, ``/``-separated; empty for its root.
        file: Weight file that the name selects, relative to ``subfolder`` or ``folder``, or None.
        variant: The quantisation, such as ``Q4_K_M`` in ``owner/name:Q4_K_M``, or None.
    """

    text: str
    repo_id: str | None = None
    revision: str | None = None
    subfolder: str = ""
    file: str | None = None
    variant: str | None = None
    folder: Path | None = None


def parse_reference(reference: str | os.PathLike[str], *, allow_local: bool = True) -> Reference:
    r"""Parse the name of a repository, folder or file.

    Sends no requests. Existing local files take precedence. A name that looks like a path (``./x``, ``/x``, ``~/x``,
    ``C:\x``) or a weight file is never a repo id. For untrusted names, ``allow_local=False`` avoids any access to the
    disk.

    Raises:
        InvalidReferenceError: If the name is invalid, or is a path that does not exist.
    """
    try:
        return _parse(reference, allow_local=allow_local)
    except InvalidReferenceError as exc:
        if allow_local:
            raise
        raise InvalidReferenceError(exc.message.replace(_ACCEPTED, _ACCEPTED_ON_THE_HUB)) from exc.__cause__


def _parse(reference: str | os.PathLike[str], *, allow_local: bool) -> Reference:
    if isinstance(reference, os.PathLike):
        return _local(os.fspath(reference)) if allow_local else _refuse(os.fspath(reference), _HUB_ONLY)
    if not isinstance(reference, str):
        raise InvalidReferenceError(
            f"the name of a model must be a text or a path, not {type(reference).__name__}; {_ACCEPTED}"
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
    # One repository may contain several such files: quantisations, or models (RWKV).
    is_of_a_repository = text.lower().endswith((".gguf", ".pth", ".ckpt", ".onnx"))
    # Everything after an @ is the revision, which may contain slashes, unless a file is named.
    is_in_a_repository = is_of_a_repository or not (is_weights or "@" in text)
    if text.strip("/").count("/") > 1 and is_in_a_repository:
        return _hub_uri(f"hf://{text}", text)
    if allow_local and is_weights and text.count("/") != 1:
        return _local(text)
    return _of_name(text.rstrip("/"), [], text)


def _local(text: str) -> Reference:
    path = Path(text)
    try:
        path = path.expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError):  # the name is too long for this disk, or the home folder is unknown
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
        # Resolve the parent but not the file: in the Hub's cache, the file and its siblings are links.
        return Reference(text, file=path.name, folder=Path(os.path.realpath(path.parent)))
    raise missing_path(text)


def _is_on_disk(text: str) -> bool:
    first, second, *below = [*text.split("/"), "", ""]
    try:
        return Path(text).exists() or (any(below) and Path(first, second).is_dir())
    except OSError:  # the name is too long for this disk
        return False


def folders_like(text: str) -> list[str]:
    """Return local folders and weight files whose names start with this text."""
    return [name for name in names_beside(text) if Path(name).is_dir() or name.lower().endswith(WEIGHT_SUFFIXES)]


def _hub_uri(uri: str, text: str) -> Reference:
    segments = _of_a_model(uri[len("hf://") :].strip("/").split("/"), text)
    n_name = 2
    if len(segments) > 1 and segments[1].endswith("@refs"):
        n_name += _n_of_ref(["refs", *segments[2:]]) - 1
    return _of_name("/".join(segments[:n_name]), segments[n_name:], text)


def _n_of_ref(segments: list[str]) -> int:
    return 3 if segments[0] == "refs" and len(segments) >= 3 else 1


def _of_name(name: str, path_segments: list[str], text: str) -> Reference:
    name, colon, variant = name.partition(":")
    repo_id, at, revision = name.partition("@")
    revision = unquote(revision)  # a slash in a revision before a path is written %2F
    if at and not revision:
        _refuse(text, "nothing follows the @")
    if not colon:
        return _with_place(text, _valid_repo_id(repo_id, text), revision or None, path_segments, is_file=None)
    if _VARIANT.fullmatch(variant) is None or (path_segments and variant.lower().endswith(".gguf")):
        _refuse(text, "the part after the colon is not a quantisation such as Q4_K_M")
    if variant.lower().endswith(".gguf"):  # ollama also accepts a whole file name
        path_segments, variant = [variant], ""
    located = _with_place(text, _valid_repo_id(repo_id, text), revision or None, path_segments, is_file=None)
    # ollama writes "latest" if no variant is selected.
    return located if not variant or variant.lower() == "latest" else replace(located, variant=variant)


def _of_a_model(segments: list[str], text: str) -> list[str]:
    kind = segments[0] if segments else ""
    if kind in _OTHER_KINDS:
        _refuse(text, f"it names {_OTHER_KINDS[kind]}, not a model")
    return segments[1:] if kind == "models" else segments


def _hub_url(text: str) -> Reference:
    path = path_on_hub(text, may_name_user=True)
    if path is None:
        _refuse(text, "its host is not the Hub's, or it is not below HF_ENDPOINT (set that for a mirror)")
    segments = _of_a_model([unquote(segment) for segment in path.split("/") if segment], text)
    if not segments or segments[0] in _NOT_OWNERS:
        _refuse(text, "the URL contains no repository")
    page_words = ("tree", "blob", "resolve", "raw", "commit", "commits", "discussions", "blame")
    n_name = 1 if len(segments) == 1 or segments[1] in page_words else 2
    reference = _of_name("/".join(segments[:n_name]), [], text)
    revision = reference.revision or ""
    page, path_segments = (segments[n_name], segments[n_name + 1 :]) if len(segments) > n_name else ("", [])
    if page in ("tree", "blob", "resolve", "raw", "commit", "commits", "blame") and path_segments:
        n_revision = _n_of_ref(path_segments)
        revision, path_segments = "/".join(path_segments[:n_revision]), path_segments[n_revision:]
    elif page:
        path_segments = []
    if not path_segments:
        return replace(reference, revision=revision or None)
    assert reference.repo_id is not None
    return _with_place(
        text, reference.repo_id, revision or None, path_segments, is_file=None if page == "tree" else page != ""
    )


def _with_place(
    text: str, repo_id: str, revision: str | None, path_segments: list[str], *, is_file: bool | None
) -> Reference:
    file = None
    if path_segments and (is_file or (is_file is None and path_segments[-1].lower().endswith(WEIGHT_SUFFIXES))):
        name, path_segments = path_segments[-1], path_segments[:-1]
        file = name if name.lower().endswith(WEIGHT_SUFFIXES) else None  # a link to the card names the model
    if any(segment in (".", "..") or "\\" in segment for segment in path_segments):
        _refuse(text, "its folder leaves the repository")
    return Reference(text, repo_id, revision, "/".join(path_segments), file)


def _valid_repo_id(repo_id: str, text: str) -> str:
    if not is_repo_id(repo_id):
        raise InvalidReferenceError(f"{text!r} does not name a model; {_ACCEPTED}")
    return repo_id


def _refuse(text: str, why: str) -> NoReturn:
    raise InvalidReferenceError(f"{text!r} does not name a model: {why}; {_ACCEPTED}")
