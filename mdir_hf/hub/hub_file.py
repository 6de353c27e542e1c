"""A single small file named by its address on the Hub, in a model, data set or Space repository."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from mdir_hf.errors import ByteBudgetError, InvalidReferenceError, ServerError
from mdir_hf.hub.endpoint import CALLER, current_endpoint, hub_hosts
from mdir_hf.hub.errors_map import hub_errors
from mdir_hf.hub.location import HEAD_TIMEOUT_S
from mdir_hf.hub.paths import safe_path
from mdir_hf.hub.remote import HIDDEN_BAR, hub_cache_dir
from mdir_hf.hub.retry import with_patience

_KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
_PAGES = ("resolve", "blob", "raw")


def read_hub_file(
    url: str, *, max_bytes: int, token: str | bool | None = None, cache_dir: str | None = None
) -> tuple[bytes, str]:
    """Download a small file from the Hub, and from nowhere else.

    Args:
        url: ``https://huggingface.co/owner/name/resolve/main/path`` (also ``blob`` or ``raw``, and with ``datasets/``
            or ``spaces/`` in front), on the Hub or on ``HF_ENDPOINT``.
        max_bytes: Most bytes it may have.
        token: As the Hub client takes it.
        cache_dir: The Hub's cache.

    Returns:
        The content, and the commit that it is of.

    Raises:
        InvalidReferenceError: If the address is not one of a file on the Hub.
        ByteBudgetError: If the file is larger.
        HubError: If it cannot be had.

    Cost: a HEAD, and a download unless it is in the cache.
    """
    place, commit = fetch_hub_file(url, max_bytes=max_bytes, token=token, cache_dir=cache_dir)
    return place.read_bytes(), commit


def fetch_hub_file(
    url: str, *, max_bytes: int, token: str | bool | None = None, cache_dir: str | os.PathLike[str] | None = None
) -> tuple[Path, str]:
    """Download a file from the Hub into its cache; as :func:`read_hub_file`, but return where it lies."""
    kind, repo, revision, path = parse_file_url(url)
    label = f"{repo}@{revision}"
    endpoint = current_endpoint()
    address = hf_hub_url(repo, path, repo_type=kind, revision=revision, endpoint=endpoint)
    with hub_errors(label, file=path, revision=revision):
        metadata = with_patience(
            lambda: get_hf_file_metadata(address, token=token, timeout=HEAD_TIMEOUT_S, endpoint=endpoint, **CALLER)
        )
        if metadata.size is None or metadata.commit_hash is None:
            raise ServerError(
                "the answer has no commit or no size in its headers; check HF_ENDPOINT and any proxy",
                subject=f"{label}:{path}",
            )
        if metadata.size > max_bytes:
            raise ByteBudgetError(
                f"has {metadata.size:,} bytes, expected at most {max_bytes:,}", subject=f"{label}:{path}"
            )
        place = with_patience(
            lambda: hf_hub_download(
                repo,
                path,
                repo_type=kind,
                revision=metadata.commit_hash,
                cache_dir=hub_cache_dir(cache_dir),
                token=token,
                endpoint=endpoint,
                tqdm_class=HIDDEN_BAR,
                **CALLER,
            )
        )
        return Path(place), metadata.commit_hash


def parse_file_url(url: str) -> tuple[str, str, str, str]:
    """Return kind of repository, repo id, revision and path of the address of a file on the Hub.

    Raises:
        InvalidReferenceError: If it is anything else.
    """
    try:
        scheme, host, place = urlsplit(url)[:3]
    except ValueError:  # such as an unfinished IPv6 address
        scheme = host = place = ""
    is_hub = scheme in ("http", "https") and host.lower() in hub_hosts()
    segments = [unquote(segment) for segment in place.split("/") if segment]
    kind = _KINDS.get(segments[0], "model") if segments else "model"
    if segments and segments[0] in _KINDS:
        del segments[0]
    n_name = next((n for n in (2, 1) if len(segments) > n and segments[n] in _PAGES), 0)
    repo, rest = "/".join(segments[:n_name]), segments[n_name + 1 :]
    n_revision = 3 if rest[:1] == ["refs"] else 1
    if not is_hub or not n_name or len(rest) <= n_revision:
        raise InvalidReferenceError(
            f"{url[:200]!r} is not the address of a file on the Hub; accepted are addresses such as "
            "https://huggingface.co/owner/name/resolve/main/.lineage/report.json, and files on this disk"
        )
    try:
        validate_repo_id(repo)
    except HFValidationError as exc:
        raise InvalidReferenceError(f"{url[:200]!r} does not name a repository") from exc
    path = safe_path("/".join(rest[n_revision:]), subject=repo)
    return kind, repo, "/".join(rest[:n_revision]), path
