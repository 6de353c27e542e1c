"""Import the package from the wheel next to this file, where ``make space-folder`` puts it.

A Space installs its requirements before its own files exist, so they cannot name the wheel, and a package of that name
on an index may not be ours. The wheel is therefore unpacked at startup and takes precedence over installed packages.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
_unpacked: tempfile.TemporaryDirectory[str] | None = None


def use_carried_wheel() -> Path | None:
    """Put the package from the wheel first on ``sys.path``, if there is a wheel.

    Returns:
        The temporary folder with the unpacked wheel, or None.
    """
    global _unpacked
    wheels = sorted(HERE.glob("mdir_hf-*.whl"))
    if not wheels:
        return None
    if len(wheels) > 1:
        raise RuntimeError(f"{HERE} has two wheels, {wheels[0].name} and {wheels[1].name}; delete the old one")
    _unpacked = tempfile.TemporaryDirectory(prefix="mdir-hf-")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(_unpacked.name)
    sys.path.insert(0, _unpacked.name)
    space = os.environ.get("SPACE_ID")
    if space:
        # Visitors install the package from here as long as no package index has it.
        hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        os.environ.setdefault("MDIR_HF_ORIGIN", f"{hub}/spaces/{space}/resolve/main/{wheels[0].name}")
    return Path(_unpacked.name)
