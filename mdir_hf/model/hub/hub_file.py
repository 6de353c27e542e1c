"""Read or download a small file, given its URL on the Hub."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import unquote

from huggingface_hub import get_hf_file_metadata, hf_hub_url

from mdir_hf.errors import ByteBudgetError, HubError, InvalidReferenceError, MdirError, ServerError
from mdir_hf.model.hub.endpoint import CALLER, current_endpoint, path_on_hub
from mdir_hf.model.hub.errors_map import hub_errors
from mdir_hf.model.hub.local import commit_named, digest, has_digest
from mdir_hf.model.hub.location import HEAD_TIMEOUT_S, HubPlace
from mdir_hf.model.hub.range_cache import RangeCache, shared_range_cache
from mdir_hf.model.hub.ranges import HubFile
from mdir_hf.model.hub.retry import with_patience
from mdir_hf.names import is_repo_id, safe_path
from mdir_hf.own_cache import cache_root

_KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
_PAGES = ("resolve", "blob", "raw")


def read_hub_file(url: str, *, max_bytes: int, token: str | bool | None = None) -> tuple[bytes, str]:
    """Return the content and commit of a small file on the Hub.

    ``url`` looks like ``https://huggingface.co/owner/name/resolve/main/path``; ``blob``, ``raw``, ``datasets/`` and
    ``spaces/`` also work.

    Raises:
        InvalidReferenceError: If the URL does not point to a file on the Hub.
        ByteBudgetError: If the file is larger than ``max_bytes``.
        HubError: If the file cannot be read.
    """
    source, etag, commit = _open(url, max_bytes=max_bytes, token=token, cache=shared_range_cache())
    content = source.whole()
    if not has_digest(content, etag):
        source.distrust()
        content = source.whole()
    if not has_digest(content, etag):
        raise _wrong_content(source.label, etag)
    return content, commit


def fetch_hub_file(
    url: str, *, max_bytes: int, token: str | bool | None = None, cache_dir: str | os.PathLike[str] | None = None
) -> tuple[Path, str]:
    """Download a small file from the Hub and return its local path and commit; see :func:`read_hub_file`.

    The file is stored under ``mdir-hf`` in ``cache_dir``; by default, next to the range cache.
    """
    source, etag, commit = _open(url, max_bytes=max_bytes, token=token, cache=None)
    root = cache_root() if cache_dir is None else Path(cache_dir).expanduser() / "mdir-hf"
    place = root / "files" / source.key
    if place.is_file() and place.stat().st_size == source.n_bytes and _file_has_digest(place, etag):
        return place, commit
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=place.parent)
    except OSError as exc:
        raise _not_written(root, exc) from exc
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in source.read_many(source.spans()):
                file.write(piece)
        if not _file_has_digest(Path(temporary), etag):
            raise _wrong_content(source.label, etag)
        Path(temporary).replace(place)
    except OSError as exc:
        if isinstance(exc, MdirError):
            raise
        raise _not_written(root, exc) from exc
    finally:
        Path(temporary).unlink(missing_ok=True)
    return place, commit


def _open(
    url: str, *, max_bytes: int, token: str | bool | None, cache: RangeCache | None
) -> tuple[HubFile, str | None, str]:
    kind, repo, revision, path = parse_file_url(url)
    label = f"{repo}@{revision}"
    endpoint = current_endpoint()
    address = hf_hub_url(repo, path, repo_type=kind, revision=revision, endpoint=endpoint)
    with hub_errors(label, file=path, revision=revision):
        metadata = with_patience(
            lambda: get_hf_file_metadata(address, token=token, timeout=HEAD_TIMEOUT_S, endpoint=endpoint, **CALLER)
        )
    if metadata.size is None:
        raise ServerError(
            "the response has no size in its headers; check HF_ENDPOINT and any proxy", subject=f"{label}:{path}"
        )
    if metadata.size > max_bytes:
        raise ByteBudgetError(f"has {metadata.size:,} bytes, expected at most {max_bytes:,}", subject=f"{label}:{path}")
    commit = commit_named(metadata.commit_hash, revision=revision, subject=f"{label}:{path}")
    etag = digest(metadata.etag)
    place = HubPlace(repo, commit, path, endpoint, token, label, kind)
    return HubFile(place, n_bytes=metadata.size, etag=etag, cache=cache), etag, commit


def _file_has_digest(place: Path, expected: str | None) -> bool:
    if expected is None:
        return True
    is_sha256 = len(expected) == 64
    content_digest = (
        hashlib.sha256() if is_sha256 else hashlib.sha1(b"blob %d\0" % place.stat().st_size, usedforsecurity=False)
    )
    with place.open("rb") as content:
        while block := content.read(1 << 20):
            content_digest.update(block)
    return content_digest.hexdigest() == expected


def _wrong_content(label: str, etag: str | None) -> ServerError:
    return ServerError(
        f"the content differs from the digest that the Hub states ({etag}); check HF_ENDPOINT and any proxy, or try "
        "again later",
        subject=label,
    )


def _not_written(root: Path, exc: OSError) -> HubError:
    return HubError(f"cannot write to {root}: {exc.strerror}; free some space, or set MDIR_HF_CACHE or --cache-dir")


def parse_file_url(url: str) -> tuple[str, str, str, str]:
    """Split a file URL into repository kind, repo id, revision and path."""
    place = path_on_hub(url) if "://" in url else None
    segments = [unquote(segment) for segment in (place or "").split("/") if segment]
    kind = _KINDS.get(segments[0], "model") if segments else "model"
    if segments and segments[0] in _KINDS:
        del segments[0]
    n_name = next((n for n in (2, 1) if len(segments) > n and segments[n] in _PAGES), 0)
    repo, revision_and_path = "/".join(segments[:n_name]), segments[n_name + 1 :]
    n_revision = 3 if revision_and_path[:1] == ["refs"] else 1
    if not n_name or len(revision_and_path) <= n_revision:
        raise InvalidReferenceError(
            f"{url[:200]!r} is not the URL of a file on the Hub; accepted are URLs such as "
            "https://huggingface.co/owner/name/resolve/main/.lineage/report.json, and files on this disk"
        )
    if not is_repo_id(repo):
        raise InvalidReferenceError(f"{url[:200]!r} does not name a repository")
    path = safe_path("/".join(revision_and_path[n_revision:]), subject=repo)
    return kind, repo, "/".join(revision_and_path[:n_revision]), path
