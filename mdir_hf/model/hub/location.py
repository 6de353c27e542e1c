"""Find the current URL of a file's content, on the Hub or a CDN.

Files stored in git need no request if the Hub listed their size and blob id. For other files, a HEAD request returns a
signed CDN URL, which expires.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from huggingface_hub import get_hf_file_metadata, hf_hub_url

from mdir_hf.errors import ServerError
from mdir_hf.model.hub.connection import secured
from mdir_hf.model.hub.endpoint import CALLER
from mdir_hf.model.hub.errors_map import hub_errors
from mdir_hf.model.hub.ledger import IoLedger
from mdir_hf.model.hub.local import COMMIT, SHA256, digest
from mdir_hf.model.hub.retry import with_patience

HEAD_TIMEOUT_S = 10.0
_EXPIRY_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A file in a repository, with everything needed to request it.

    Attributes:
        kind: ``model``, ``dataset`` or ``space``.
        is_restricted: Whether the repository is private or gated; if so, its cached content is not shared.
    """

    repo: str
    commit: str
    path: str
    endpoint: str
    token: str | bool | None
    label: str
    kind: str = "model"
    is_restricted: bool = False

    @property
    def url(self) -> str:
        """URL of the file on the Hub."""
        return hf_hub_url(self.repo, self.path, repo_type=self.kind, revision=self.commit, endpoint=self.endpoint)

    def __repr__(self) -> str:  # must not print the token
        return f"HubPlace({self.label}:{self.path})"


@dataclass(frozen=True, slots=True)
class Location:
    """The URL and identity of a file's content.

    Attributes:
        url: URL for ranged GET requests. It is secret if signed, and empty once known to be stale.
        etag: SHA-256 of an LFS file, or git blob id of a small file.
        expires_at: Expiry time on the monotonic clock, or infinity.
    """

    url: str
    etag: str
    n_bytes: int
    expires_at: float

    def __repr__(self) -> str:
        return f"Location(etag={self.etag!r}, n_bytes={self.n_bytes})"


class Locator:
    """Finds a file's location, and refreshes it after expiry. Thread-safe."""

    def __init__(self, place: HubPlace, *, n_bytes: int | None, etag: str | None, ledger: IoLedger) -> None:
        self.place = place
        self._n_bytes = n_bytes
        self._etag = etag
        self._ledger = ledger
        self._lock = threading.Lock()
        self._location: Location | None = None
        self._was_asked = False
        if n_bytes is not None and etag is not None and COMMIT.fullmatch(etag):
            self._location = Location(place.url, etag, n_bytes, float("inf"))

    def current(self) -> Location:
        """Return the file's location, renewing it if it has expired."""
        with self._lock:  # concurrent first reads send one HEAD
            location = self._location
            if location is None or not location.url or time.monotonic() >= location.expires_at:
                new = self._head()
                if location is not None and self._is_other(new, location):
                    raise ServerError(
                        f"the content on the Hub has changed: ETag {new.etag}, {new.n_bytes:,} bytes; before it was "
                        f"ETag {location.etag}, {location.n_bytes:,} bytes. Start again",
                        subject=self._label,
                    )
                self._location = location = new
                self._was_asked = True
            return location

    def forget(self, location: Location) -> None:
        """Mark a location's URL as stale, unless another thread has replaced it."""
        with self._lock:
            if self._location is location:
                self._location = Location("", location.etag, location.n_bytes, 0.0)

    def moved(self, location: Location, target: str) -> None:
        """Replace a location's URL with the target of a redirect, rejecting redirects from https to http."""
        url = secured(location.url, target, subject=self._label)
        with self._lock:
            if self._location is location:
                self._location = Location(url, location.etag, location.n_bytes, _expires_at(url))

    def _is_other(self, new: Location, location: Location) -> bool:
        # A mirror may list one kind of ETag and return another.
        is_comparable = self._was_asked or digest(new.etag) is not None
        return new.n_bytes != location.n_bytes or (is_comparable and new.etag != location.etag)

    @property
    def _label(self) -> str:
        return f"{self.place.label}:{self.place.path}"

    def _head(self) -> Location:
        place = self.place
        with hub_errors(place.label, file=place.path, revision=place.commit):
            metadata = with_patience(
                lambda: get_hf_file_metadata(
                    place.url, token=place.token, timeout=HEAD_TIMEOUT_S, endpoint=place.endpoint, **CALLER
                ),
                before_each=self._ledger.requested,
            )
        etag, n_bytes = metadata.etag, metadata.size
        if etag is None or n_bytes is None or metadata.commit_hash is None:
            raise ServerError(
                "the response has no commit, ETag or size in its headers; it may come from a network's login "
                "page: check HF_ENDPOINT and any proxy",
                subject=self._label,
            )
        wrong = None
        if metadata.commit_hash != place.commit:
            wrong = f"commit {place.commit} was requested, but the Hub returned {metadata.commit_hash}"
        elif self._n_bytes not in (None, n_bytes):
            wrong = f"the Hub lists this file with {self._n_bytes:,} bytes, but serves {n_bytes:,}"
        # Mirrors may use other kinds of ETags, but two different SHA-256 digests mean different contents.
        elif self._etag not in (None, etag) and SHA256.fullmatch(self._etag or "") and SHA256.fullmatch(etag):
            wrong = f"the Hub lists this file with sha256 {self._etag}, but serves it with ETag {etag}"
        if wrong is not None:
            raise ServerError(wrong, subject=self._label)
        location = secured(place.url, metadata.location, subject=self._label)
        return Location(location, etag, n_bytes, _expires_at(location))


def _expires_at(url: str) -> float:
    query = parse_qs(urlsplit(url).query)
    for name in ("X-Amz-Expires", "Expires"):
        text = query.get(name, [""])[0]
        if text.isascii() and text.isdecimal() and len(text) < 12:
            lifetime_s = float(text) if name == "X-Amz-Expires" else float(text) - time.time()
            if lifetime_s > 2 * _EXPIRY_MARGIN_S:
                return time.monotonic() + lifetime_s - _EXPIRY_MARGIN_S
    return float("inf")
