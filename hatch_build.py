"""Fill in the README and the addresses of the repository in the metadata of a release.

A package index shows the README outside of the repository, so its links and pictures become absolute. The address comes
from CI or from git's ``origin``: written into a file, it would be wrong in every fork. Without an address, links stay
relative.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = "https://arxiv.org/abs/2508.06309"
_LINK = re.compile(r"(\]\()(?!https?://|#)([^)\s]+)(\))")
_PICTURE = re.compile(r'(<img src=")(?!https?://)([^"]+)(")')


class RepositoryMetadata(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what is dynamic in pyproject.toml."""
        root = Path(self.root)
        repository = repository_address(root)
        text = (root / "README.md").read_text(encoding="utf-8")
        urls = {"Paper": PAPER}
        if repository:
            text = absolute_links(text, repository, revision(root))
            urls |= {
                "Homepage": repository,
                "Documentation": f"{repository}/blob/HEAD/docs/index.md",
                "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{repository}/issues",
                "Source": repository,
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls


def repository_address(root: Path) -> str:
    """Return the web address of the repository without a slash at the end; empty if nothing says it."""
    name = os.environ.get("GITHUB_REPOSITORY")
    if name:
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    address = _git(root, "remote", "get-url", "origin")
    address = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", address)
    return address.removesuffix(".git") if re.fullmatch(r"https://[\w.-]+/[\w./-]+", address) else ""


def revision(root: Path) -> str:
    """Return what to link to: the tag that is released, else the commit, else the newest."""
    tag = os.environ.get("GITHUB_REF_NAME", "") if os.environ.get("GITHUB_REF_TYPE") == "tag" else ""
    return tag or _git(root, "rev-parse", "HEAD") or "HEAD"


def absolute_links(text: str, repository: str, revision: str) -> str:
    """Return Markdown whose links lead into a repository, from wherever it is read."""
    text = _LINK.sub(rf"\1{repository}/blob/{revision}/\2\3", text)
    return _PICTURE.sub(rf"\1{repository}/raw/{revision}/\2\3", text)


def _git(root: Path, *words: str) -> str:
    if not (root / ".git").exists():
        return ""  # an unpacked source distribution may lie inside somebody else's checkout
    try:
        found = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
