"""Find the pip command that installs this package or an extra from the same source as the running copy.

The package is not on PyPI yet, so ``pip install mdir-hf`` could install a different project.
"""

from __future__ import annotations

import json
import os
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mdir_hf.errors import MissingExtraError

NAME = "mdir-hf"
ORIGIN_VARIABLE = "MDIR_HF_ORIGIN"
"""Environment variable with the URL of a wheel, set by programs that bundle this package."""

_ROOT = Path(__file__).resolve().parent.parent


def install_command(*extras: str, for_others: bool = False) -> str:
    """Return the POSIX shell command that installs this package with the given extras.

    If ``for_others`` is true, the command contains no local path.
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    url = os.environ.get(ORIGIN_VARIABLE)
    if url:
        return _command(f"{NAME}{wanted} @ {url}")
    clone = _command(f".{wanted}") + "  # in a clone of mdir-hf"
    if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "mdir_hf").is_dir():
        return clone if for_others else _command("-e", f"{_ROOT}{wanted}")
    origin = _direct_url()
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        return clone if for_others else _command(url2pathname(urlsplit(url).path) + wanted)
    version_control = origin.get("vcs_info")
    if url and isinstance(version_control, dict):
        url = f"{version_control.get('vcs', 'git')}+{url}@{version_control.get('commit_id', 'HEAD')}"
    return _command(f"{NAME}{wanted} @ {url}" if url else f"{NAME}{wanted}")


def _command(*words: str) -> str:
    return " ".join(("pip install", *map(shlex.quote, words)))


def _direct_url() -> dict[str, object]:
    """Return the installer's record of the source (PEP 610), which is empty if the source is a package index."""
    try:
        record = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def require_extra(extra: str, *modules: str, purpose: str, for_others: bool = False) -> None:
    """Raise ``MissingExtraError`` unless the modules of an extra are installed, without importing them.

    The message consists of ``purpose`` and the command from :func:`install_command`.
    """
    if not all(map(_is_installed, modules)):
        raise MissingExtraError(f"{purpose}: {install_command(extra, for_others=for_others)}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package of a submodule is missing
        return False
