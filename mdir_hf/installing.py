"""The pip command that installs this package, or one of its extras, from the same source as this copy.

The one place that knows: as long as the package is on no index, ``pip install mdir-hf`` finds nothing, or what somebody
else has put there under that name. So a copy says where it came from itself.
"""

from __future__ import annotations

import json
import os
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "mdir-hf"
ORIGIN_VARIABLE = "MDIR_HF_ORIGIN"
"""URL of a wheel, set by a program that ships this package with itself."""

_ROOT = Path(__file__).resolve().parent.parent


def install_command(*extras: str, for_others: bool = False) -> str:
    """Return the command for a POSIX shell that installs this package with some extras.

    Args:
        extras: Names of extras, such as ``gguf``.
        for_others: Whether somebody at another machine reads it: no path of this one stands in it.

    Returns:
        A ``pip install`` of the clone that runs, of the folder, wheel or address that this copy was installed from, or,
        where it came from an index, of the name.
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    address = os.environ.get(ORIGIN_VARIABLE)
    if address:
        return _command(f"{NAME}{wanted} @ {address}")
    clone = _command(f".{wanted}") + "  # in a clone of mdir-hf"
    if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "mdir_hf").is_dir():
        return clone if for_others else _command("-e", f"{_ROOT}{wanted}")
    origin = _direct_url()
    address = str(origin.get("url", ""))
    if address.startswith("file:"):
        return clone if for_others else _command(url2pathname(urlsplit(address).path) + wanted)
    version_control = origin.get("vcs_info")
    if address and isinstance(version_control, dict):
        address = f"{version_control.get('vcs', 'git')}+{address}@{version_control.get('commit_id', 'HEAD')}"
    return _command(f"{NAME}{wanted} @ {address}" if address else f"{NAME}{wanted}")


def _command(*words: str) -> str:
    return " ".join(("pip install", *map(shlex.quote, words)))


def _direct_url() -> dict[str, object]:
    """Return what the installer noted of where the package came from (PEP 610); nothing if it was an index."""
    try:
        noted = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}
