"""The lists of the loopback Hub: models by name and author, page by page, and collections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from mdir_hf.demo.loopback import object_id
from tests.loopback.repository import FullRepository

LARGEST_PAGE = 1000


@dataclass(frozen=True)
class StoredCollection:
    """A collection of the loopback Hub.

    Attributes:
        slug: ``owner/title-`` and 24 hexadecimal digits.
        title: Its title.
        items: Kind (``model``, ``dataset``, ``paper``, ``space``) and id of each thing in it.
        private: Whether the Hub tells strangers that it does not exist.
    """

    slug: str
    title: str
    items: tuple[tuple[str, str], ...]
    private: bool = False

    def answer(self) -> dict[str, Any]:
        """Return the API response for the collection."""
        owner = self.slug.partition("/")[0]
        return {
            "slug": self.slug,
            "title": self.title,
            "description": "",
            "owner": {"name": owner, "fullname": owner, "type": "user", "isPro": False},
            "position": 0,
            "private": self.private,
            "theme": "blue",
            "upvotes": 0,
            "lastUpdated": "2026-11-21T00:00:00.000Z",
            "items": [
                {"_id": object_id(name), "type": kind, "id": name, "position": at}
                for at, (kind, name) in enumerate(self.items)
            ],
        }


def new_collection(
    owner: str, title: str, items: Sequence[str | tuple[str, str]], *, private: bool = False
) -> StoredCollection:
    """Create a collection with a slug as on the Hub; items without a kind are models."""
    slug = f"{owner}/{'-'.join(title.lower().split())}-{object_id(owner + title)}"
    return StoredCollection(
        slug, title, tuple(("model", item) if isinstance(item, str) else item for item in items), private
    )


def model_page(
    repositories: Sequence[FullRepository],
    asked: Mapping[str, str],
    *,
    expands: Sequence[str],
    largest_page: int,
    address: str,
) -> tuple[list[dict[str, Any]], str | None]:
    """Return one page of a search, and the URL of the next one.

    Args:
        repositories: The repositories that the caller may see.
        asked: Query parameters.
        expands: Requested fields of each model; empty for the Hub's default.
        largest_page: Largest number of models on a page.
        address: URL of the list.
    """
    wanted = asked.get("search", "").lower()
    found = [
        known
        for known in repositories
        if wanted in known.repo_id.lower()
        and asked.get("author", "").lower() in ("", known.repo_id.partition("/")[0].lower())
        and asked.get("pipeline_tag") in (None, known.pipeline_tag)
    ]
    if asked.get("sort") == "downloads":
        found.sort(key=lambda known: -known.downloads)
    limit = int(asked["limit"]) if asked.get("limit", "").isdigit() else LARGEST_PAGE
    start = int(asked["cursor"]) if asked.get("cursor", "").isdigit() else 0
    stop = start + min(limit, largest_page)
    page = [_listed(known, expands, asked.get("sort")) for known in found[start:stop]]
    if stop >= len(found):
        return page, None
    return page, f"{address}?{urlencode({**asked, 'expand': expands, 'cursor': stop}, doseq=True)}"


def _listed(known: FullRepository, expands: Sequence[str], sort: str | None) -> dict[str, Any]:
    """Return the entry of a model: its names and, with ``expand``, only the requested fields and the sort key."""
    of_all = {"downloads": known.downloads, "pipeline_tag": known.pipeline_tag, "private": known.private}
    if expands:
        of_all |= {"gated": "auto" if known.gated else False}
        if known.n_parameters is not None:
            of_all |= {"safetensors": {"parameters": {"F16": known.n_parameters}, "total": known.n_parameters}}
        of_all = {name: value for name, value in of_all.items() if name in (*expands, sort)}
    return {"_id": object_id(known.repo_id), "id": known.repo_id, "modelId": known.repo_id, **of_all}


def entry_page(
    entries: Sequence[dict[str, Any]], asked: Mapping[str, str], *, largest_page: int, address: str
) -> tuple[list[dict[str, Any]], str | None]:
    """Return one page of the files of a commit, and the URL of the next one."""
    start = int(asked["cursor"]) if asked.get("cursor", "").isdigit() else 0
    stop = start + largest_page
    after = f"{address}?{urlencode({**asked, 'cursor': stop})}" if stop < len(entries) else None
    return list(entries[start:stop]), after
