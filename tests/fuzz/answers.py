"""Fuzz targets for responses: the bytes of one kind of response are changed, and all others are valid."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from mdir_hf.errors import MdirError
from mdir_hf.model.hub import models_of_author, models_of_collection, open_repository, resolve_model
from mdir_hf.model.hub.hub_file import fetch_hub_file, read_hub_file
from mdir_hf.model.hub.pull_request import ProposedCommit, open_pull_request
from tests.fuzz import server
from tests.fuzz.mutations import NUMBERS, TEXTS, Draw, changed_list, damaged, json_files
from tests.fuzz.property import Target

STATUSES = ["200 OK", "206 Partial Content", "301 Moved Permanently", "302 Found", "307 Temporary Redirect"]
STATUSES += ["400 Bad Request", "401 Unauthorized", "403 Forbidden", "404 Not Found", "408 Request Timeout"]
STATUSES += ["409 Conflict", "410 Gone", "412 Precondition Failed", "416 Range Not Satisfiable"]
STATUSES += [
    "429 Too Many Requests",
    "500 Internal Server Error",
    "503 Service Unavailable",
    "100 Continue",
    "204 None",
]
STATUSES += ["101 Switching", "304 Not Modified", "599 x", "999 x", "000 x", "2 x", ""]

NAMES = [b"Content-Length", b"Content-Range", b"Content-Encoding", b"Content-Type", b"Transfer-Encoding", b"Location"]
NAMES += [b"ETag", b"X-Linked-Etag", b"X-Linked-Size", b"X-Repo-Commit", b"Link", b"Retry-After", b"RateLimit"]
NAMES += [b"RateLimit-Policy", b"X-Error-Code", b"X-Error-Message", b"X-Request-Id", b"Connection", b"Set-Cookie"]
NAMES += [b"WWW-Authenticate", b"X-Xet-Hash", b"X-Xet-Refresh-Route", b"Warning", b"Date"]

SAID = [
    b"0",
    b"1",
    b"-1",
    b"32",
    b"64",
    b"\xb2\xb3",
    b"9" * 30,
    b"9" * 5000,
    b"chunked",
    b"gzip",
    b"deflate",
    b"br",
    b"zstd",
]
SAID += [b"identity", b"x, gzip", b"gzip, gzip", b"bytes 8-39/64", b"bytes 8-39/*", b"bytes */64", b"bytes 39-8/64"]
SAID += [
    b"bytes 0-63/64",
    b"bytes 8-39/99999999999",
    b"/",
    b"//",
    b"../..",
    b"?",
    b"http://",
    b"http://[::1",
    b"http://[v]/",
]
SAID += [b"http://hub.test:99999/", b"http://hub.test:x/", b"http://hub.test/owner/name/resolve/main/w.bin"]
SAID += [b"http://cdn.test/w.bin", b"http://u:p@cdn.test/w.bin", b"http://hub.test@cdn.test/", b"http://cdn.test/\xff"]
SAID += [b"https://cdn.test/w.bin", b"file:///etc/passwd", b"ftp://cdn.test/", b"http://cdn.test/?Expires=\xb2"]
SAID += [b"http://cdn.test/?Expires=" + b"9" * 400, b"http://cdn.test/?X-Amz-Expires=1", b"data:,x", b"javascript:1"]
SAID += [
    b'"' + b"0" * 40 + b'"',
    b'W/"' + b"1" * 64 + b'"',
    b'"../../../../x"',
    b'""',
    b'"',
    b"..",
    b"a\x00b",
    b"\x1b[2J",
]
SAID += [
    b'<http://hub.test/api/models?cursor=1>; rel="next"',
    b'</x>; rel="next"',
    b"<>; rel=next",
    b'<http://[>; rel="next"',
]
SAID += [
    b'"api";r=0;t=5',
    b'"api";r=1;t=99999',
    b'"api";r=-1;t=-1',
    b'"fixed window";"api";q=500;w=300',
    b'"api";r=0;t=' + b"9" * 5000,
]
SAID += [b"RepoNotFound", b"RevisionNotFound", b"EntryNotFound", b"GatedRepo", b"DisabledRepo", b"RepositoryNotFound"]
SAID += [
    b"Access to this resource is disabled.",
    b"Invalid credentials in Authorization header",
    b"close",
    b"keep-alive",
]
SAID += [b"Wed, 21 Oct 2026 07:28:00 GMT", b"a=b; Domain=test", b"\xe2\x80\xae", b"x" * 70_000]

VALUES = st.one_of(st.sampled_from(SAID), NUMBERS.map(lambda number: b"%d" % number), st.binary(max_size=6))
HEADERS = st.one_of(st.tuples(st.sampled_from(NAMES), VALUES).map(b": ".join), st.binary(max_size=8))
"""A header line that some client reads, with an unexpected value."""


def _of_pieces(*pieces: bytes) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(pieces), max_size=9).map(b"".join)


# Texts joined from pieces of each format, which three libraries parse differently.
_ADDRESSES = _of_pieces(
    *(b"http:", b"https:", b"//", b"/", b"hub.test", b"cdn.test", b"@", b":", b"80", b"99999", b"[", b"]", b"?", b"#"),
    *(b"%", b"%00", b"\x01", b"\x7f", b"\xff", b" ", b"\t", b"\\", b"..", b"x", b"?Expires=", b"&X-Amz-Date="),
)
_SIGNS = (b"-", b"+", b".", b",", b";", b"=", b'"', b" ", b"0", b"7", b"9" * 25, b"\xb2", b"_", b"e5", b"inf", b"nan")
_WAITS = _of_pieces(*_SIGNS, b"Wed, 21 Oct 2026 07:28:00 GMT", b"Wed", b"GMT", b"10000", b"+9999")
_QUOTAS = _of_pieces(*_SIGNS, b'"api"', b"r=", b"t=", b"q=", b"w=", b"fixed window", b"\\")
_PARTS = _of_pieces(*_SIGNS, b"bytes ", b"8-39/64", b"8-39", b"0-63", b"/", b"/64", b"*", b"22", b"64")
_NEXT = st.tuples(
    st.sampled_from([b"", b"<"]), _ADDRESSES, st.sampled_from([b"", b">", b'>; rel="next"', b">; rel=next, <"])
).map(b"".join)
_CODES = st.sampled_from([b"RepoNotFound", b"RevisionNotFound", b"EntryNotFound", b"GatedRepo"])
_MOVED = ["301 x", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
_REFUSED = ["401 x", "403 Forbidden", "404 Not Found", "410 Gone", "451 Unavailable", "429 Too Many Requests"]
_PAIRS: list[tuple[list[str], bytes, st.SearchStrategy[bytes]]] = [
    (_MOVED, b"Location", _ADDRESSES),
    (["429 Too Many Requests", "503 Service Unavailable", "408 x", "500 x"], b"Retry-After", _WAITS),
    (["429 Too Many Requests", "200 OK"], b"RateLimit", _QUOTAS),
    (["429 Too Many Requests", "200 OK"], b"RateLimit-Policy", _QUOTAS),
    (["206 Partial Content", "200 OK", "416 Range Not Satisfiable"], b"Content-Range", _PARTS),
    (["200 OK"], b"Link", _NEXT),
    (_REFUSED, b"X-Error-Code", _CODES),
    (_REFUSED, b"X-Error-Message", st.sampled_from(SAID)),
]
"""Headers that are read only with certain statuses."""


@st.composite
def encoded(draw: Draw, body: bytes) -> tuple[list[bytes], bytes]:
    """A content encoding header, and a body in this or another encoding, possibly damaged."""
    ways = {b"gzip": lambda body: gzip.compress(body, mtime=0), b"deflate": zlib.compress, b"identity": bytes}
    name = draw(st.sampled_from([*ways, b"br", b"zstd", b"gzip, deflate", b"x-gzip", b"deflate,"]))
    packed = draw(st.sampled_from(list(ways.values())))(body * draw(st.sampled_from([1, 1, 2, 1000])))
    return [b"Content-Encoding: " + name], draw(damaged(packed))


TEXT = TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))
BODIES = st.one_of(
    st.sampled_from(
        [b"", b"{}", b"[]", b"null", b"<html>log in</html>", b'{"error": "x"}', b'{"error": [5]}', b"[" * 9999]
    ),
    st.sampled_from(
        [b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffff\r\n", b"5\r\nhel", b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd"]
    ),
    TEXT,
)


@st.composite
def answers(
    draw: Draw, status: str, headers: Sequence[bytes], bodies: st.SearchStrategy[bytes], *, has_body: bool = True
) -> bytes:
    """A changed valid response: one in four has another status, one in four a pair of :data:`_PAIRS`."""
    said = draw(st.sampled_from(STATUSES)) if not draw(st.integers(0, 3)) else status
    body = draw(bodies if draw(st.integers(0, 3)) else BODIES)
    lines = draw(changed_list(headers, HEADERS))
    if not draw(st.integers(0, 3)):
        said_with, name, values = draw(st.sampled_from(_PAIRS))
        lines = [line for line in lines if not line.lower().startswith(name.lower() + b":")]
        said, lines = draw(st.sampled_from(said_with)), [*lines, name + b": " + draw(values)]
    if not draw(st.integers(0, 15)):
        coding, body = draw(encoded(body))
        lines = [*lines, *coding]
    length = b"%d" % len(body) if draw(st.integers(0, 5)) else draw(VALUES)
    return draw(damaged(server.answer(said, lines, body if has_body else b"", length=length)))


def _repository(home: Path) -> object:
    """Read a listing and a file of each kind."""
    repository = open_repository(server.REPO)
    files = dict(repository.files)
    read = [_or_error(lambda path=path: repository.open(path).read(8, 12)) for path in sorted(files)[:4]]
    read += [_or_error(lambda path=path: repository.read(path)) for path in sorted(files)[:4]]
    return repository.repo, repository.commit, files, read


def _resolved(home: Path) -> object:
    return resolve_model(f"{server.REPO}@main")


def _range(home: Path) -> object:
    """Read a range of a weight file, which gives the whole range or an error."""
    found = open_repository(server.REPO).open("w.bin").read(8, 40)
    assert len(found) == 32
    return found


def _small_file(home: Path) -> object:
    found = open_repository(server.REPO).read("config.json")
    assert found == server.CONFIG  # the listing has its digest
    return found


def _fetched(home: Path) -> object:
    """Read a file from its URL, and save it in a cache."""
    url = f"{server.ENDPOINT}/{server.REPO}/resolve/main/w.bin"
    read = _or_error(lambda: read_hub_file(url, max_bytes=1 << 20, token=server.TOKEN))
    place, commit = fetch_hub_file(url, max_bytes=1 << 20, token=server.TOKEN, cache_dir=home / "kept")
    return read, place.read_bytes(), commit


def _proposed(home: Path) -> object:
    return open_pull_request(
        server.REPO,
        ProposedCommit({".lineage/a.json": b"{}"}, "A badge", "", parent=server.COMMIT),
        token=server.TOKEN,
    )


def _or_error(call: Callable[[], object]) -> object:
    try:
        return call()
    except MdirError as exc:
        return f"{type(exc).__name__}: {exc}"


def _target(kind: str, bodies: st.SearchStrategy[bytes], ask: Callable[[Path], object]) -> Target:
    good = server.valid(kind)
    head, _, _ = good.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    headers = [line for line in headers if not line.startswith(b"Content-Length")]
    made = answers(first.partition(b" ")[2].decode(), headers, bodies, has_body=kind != "head")
    return Target(made, good, server.asking(kind, ask))


def _of_json(kind: str, value: Any, ask: Callable[[Path], object]) -> Target:
    return _target(kind, json_files(value), ask)


ANSWERS: dict[str, Target] = {
    "answer-listing": _of_json("listing", server.LISTING, _repository),
    "answer-commit-of": _of_json("listing", server.LISTING, _resolved),
    "answer-author": _of_json("author", server.AUTHOR, lambda home: models_of_author("owner")),
    "answer-collection": _of_json(
        "collection", server.COLLECTION, lambda home: models_of_collection("owner/x-" + "0" * 24)
    ),
    "answer-head": _target("head", st.just(b""), lambda home: (_or_error(lambda: _range(home)), _fetched(home))),
    "answer-range": _target("range", damaged(server.WEIGHTS[8:40]), _range),
    "answer-small-file": _target("small-file", damaged(server.CONFIG), _small_file),
    "answer-discussions": _of_json("discussions", server.DISCUSSIONS, _proposed),
    "answer-preupload": _of_json("preupload", server.PREUPLOAD, _proposed),
    "answer-commit": _of_json("commit", server.COMMITTED, _proposed),
}
