"""Writing to the loopback Hub: checks of a card, uploads of small files, commits, pull requests.

It checks permissions, parent commits and metadata as strictly as the Hub. Large files are accepted in one part.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from mdir_hf.demo.stored_repository import LFS_BYTES, LFS_SUFFIXES
from tests.loopback.repository import FullRepository, PullRequest

if TYPE_CHECKING:
    from tests.loopback.hub import FullHub

# The client sends large files in a way that its HTTP library will stop supporting.
OLD_UPLOAD = pytest.mark.filterwarnings("ignore:Use 'content")

RELATIONS = ("adapter", "finetune", "merge", "quantized")


@dataclass
class RefusedError(Exception):
    """An error response.

    Attributes:
        status: HTTP status.
        code: ``X-Error-Code``, or an empty string.
        message: ``X-Error-Message``.
    """

    status: int
    code: str
    message: str


class Writer:
    """Stores commits to the repositories of a hub in its own folder."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._n_commits = 0
        self._lfs: dict[str, bytes] = {}

    def close(self) -> None:
        """Remove the committed files."""
        if self._folder is not None:
            self._folder.cleanup()

    def validate(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answer ``/api/validate-yaml``."""
        asked = _object(body)
        errors, warnings = _card_remarks(str(asked.get("content", "")))
        answer = {
            "errors": [{"message": message} for message in errors],
            "warnings": [{"message": message} for message in warnings],
        }
        return (400 if errors else 200), answer

    def preupload(self, repository: FullRepository, commit: str, body: bytes) -> dict[str, Any]:
        """Answer how each file must be uploaded."""
        asked = _object(body)
        files = repository.commits[commit]
        ignore = asked.get("gitIgnore")
        if ignore is None and ".gitignore" in files:
            ignore = files[".gitignore"].place.read_text(encoding="utf-8")
        answers = []
        for file in asked.get("files", []):
            path, n_bytes = str(file["path"]), int(file["size"])
            sample = base64.b64decode(file["sample"], validate=True)
            if len(sample) != min(512, n_bytes):
                raise RefusedError(400, "", "sample has not the size it should have")
            known = files.get(path)
            is_lfs = path.endswith(LFS_SUFFIXES) or n_bytes > LFS_BYTES
            answers.append(
                {
                    "path": path,
                    "uploadMode": "lfs" if is_lfs else "regular",
                    "shouldIgnore": _is_ignored(path, str(ignore or "")),
                    "oid": None if known is None else known.blob_id,
                }
            )
        return {"files": answers}

    def lfs_batch(self, hub: FullHub, body: bytes) -> dict[str, Any]:
        """Answer with the upload URLs of large files."""
        asked = _object(body)
        objects = [
            {
                "oid": str(one["oid"]),
                "size": int(one["size"]),
                "actions": {"upload": {"href": hub.cdn_address(f"/lfs/{one['oid']}")}},
            }
            for one in asked.get("objects", [])
        ]
        return {"transfer": "basic", "objects": objects}

    def take_lfs(self, oid: str, content: bytes) -> bool:
        """Keep a large file until it is committed; return False if its digest is wrong."""
        if hashlib.sha256(content).hexdigest() != oid:
            return False
        self._lfs[oid] = content
        return True

    def commit(
        self, hub: FullHub, repository: FullRepository, branch: str, body: bytes, *, create_pr: bool
    ) -> dict[str, Any]:
        """Make a commit on the branch or as a pull request for it, and return the response."""
        header, added = _operations(body, self._lfs)
        head = repository.revisions.get(branch)
        if head is None:
            raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {branch}")
        parent = repository.commit(str(header.get("parentCommit") or head))
        if parent is None:
            raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {header.get('parentCommit')}")
        if parent != head and not create_pr:
            raise RefusedError(412, "", "A commit has happened since. Please refresh and try again.")
        if "README.md" in added:
            errors, _ = _card_remarks(added["README.md"].decode("utf-8"))
            if errors:
                raise RefusedError(400, "", "; ".join(errors))
        number = len(repository.pull_requests) + 1
        name = f"refs/pr/{number}" if create_pr else branch
        commit = repository.add_commit(name, parent, self._stored(added))
        answer = {
            "success": True,
            "commitOid": commit,
            "commitUrl": f"{hub.endpoint}/{repository.address}/commit/{commit}",
            "hookOutput": "",
        }
        if create_pr:
            title, description = str(header["summary"]), str(header.get("description", ""))
            repository.pull_requests.append(PullRequest(number, title, description, branch, parent, commit))
            answer["pullRequestUrl"] = f"{hub.endpoint}/{repository.address}/discussions/{number}"
        return answer

    def _stored(self, added: dict[str, bytes]) -> dict[str, Path]:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="loopback-hub-")
        self._n_commits += 1
        places = {}
        for path, content in added.items():
            place = Path(self._folder.name, str(self._n_commits), path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            places[path] = place
        return places


DISCUSSIONS_OF_A_PAGE = 10


def discussions(repository: FullRepository, asked: dict[str, str]) -> dict[str, Any]:
    """Return the list of discussions, here only pull requests."""
    status = asked.get("status", "all")
    listed = [
        {
            "title": known.title,
            "num": known.number,
            "author": {"name": "somebody"},
            "createdAt": "2026-11-21T00:00:00.000Z",
            "status": known.status,
            "repo": {"name": repository.repo_id, "type": repository.kind},
            "isPullRequest": True,
        }
        for known in repository.pull_requests
        if status in ("all", known.status) or (status == "closed" and known.status == "merged")
    ]
    if asked.get("type", "all") == "discussion":
        listed = []
    listed.reverse()  # newest first
    start = DISCUSSIONS_OF_A_PAGE * int(asked.get("p", 0))
    page = listed[start : start + DISCUSSIONS_OF_A_PAGE]
    return {"discussions": page, "count": len(listed), "start": start, "numClosedDiscussions": 0}


def _operations(body: bytes, lfs: Mapping[str, bytes]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the header of a commit and the files that it adds, by path."""
    lines = [line for line in body.split(b"\n") if line.strip()]
    items = [_object(line) for line in lines]
    if not items or items[0].get("key") != "header" or not items[0].get("value", {}).get("summary"):
        raise RefusedError(400, "", "The first line of a commit must be its header, with a summary")
    added: dict[str, bytes] = {}
    for path, content in _files(items[1:], lfs):
        parts = path.split("/")
        if path.startswith("/") or any(part in ("", ".", "..", ".git") for part in parts):
            raise RefusedError(400, "", f"Invalid path: {path}")
        added[path] = content
    if not added:
        raise RefusedError(400, "", "No files have been modified")
    return items[0]["value"], added


def _files(items: list[dict[str, Any]], lfs: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for item in items:
        value = item.get("value", {})
        if item.get("key") == "lfsFile":
            content = lfs.get(str(value.get("oid")))
            if content is None or len(content) != value.get("size"):
                raise RefusedError(400, "", f"{value.get('path')} was not uploaded")
            yield str(value["path"]), content
            continue
        if item.get("key") != "file" or value.get("encoding") != "base64":
            raise RefusedError(400, "", f"This hub does not take {item.get('key')}")
        try:
            content = base64.b64decode(str(value["content"]), validate=True)
        except (KeyError, binascii.Error) as exc:
            raise RefusedError(400, "", "content is not base64") from exc
        if len(content) > LFS_BYTES:
            raise RefusedError(400, "", "Files larger than 10 MiB must be stored outside of git")
        yield str(value["path"]), content


def _card_remarks(content: str) -> tuple[list[str], list[str]]:
    """Return errors and warnings on the metadata of a card."""
    import yaml

    # In the Hub's JavaScript, white space includes the byte order mark.
    match = REGEX_YAML_BLOCK.search(content.lstrip("\ufeff"))
    if match is None:
        return [], ["empty or missing yaml metadata in repo card"]
    try:
        data = yaml.safe_load(match[2])
    except yaml.YAMLError:
        return ["Invalid YAML in the metadata of the card"], []
    if not isinstance(data, dict):
        return ['"metadata" must be of type object'], []
    errors = []
    bases = data.get("base_model")
    texts = bases if isinstance(bases, list) else [] if bases is None else [bases]
    if not all(isinstance(one, str) and one.strip() for one in texts):
        errors.append('"base_model" must be a string or an array of strings')
    relation = data.get("base_model_relation")
    if relation is not None and relation not in RELATIONS:
        errors.append(f'"base_model_relation" must be one of [{", ".join(RELATIONS)}]')
    return errors, []


def _is_ignored(path: str, ignore: str) -> bool:
    """Tell whether a .gitignore names a file; only the plain patterns that tests use are supported."""
    patterns = [line.strip().strip("/") for line in ignore.splitlines() if line.strip() and line[0] not in "#!"]
    return any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns for part in (path, *path.split("/")))


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as exc:
        raise RefusedError(400, "", "Invalid JSON") from exc
    if not isinstance(value, dict):
        raise RefusedError(400, "", "Expected an object")
    return value
