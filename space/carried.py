"""A Space brings its own copy of the package: a wheel beside this file, which ``make space-folder`` puts there.

A Space installs its requirements before its own files are there, so that they cannot name the wheel; and the name on an
index may not be ours. So the wheel is unpacked when the Space starts, and goes before whatever is installed.
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
    """Put the package from the wheel first on the path; without a wheel do nothing.

    Returns:
        Where it was unpacked, until the program ends.
    """
    global _unpacked
    wheels = sorted(HERE.glob("mdir_hf-*.whl"))
    if not wheels:
        return None
    if len(wheels) > 1:
        raise RuntimeError(f"two wheels lie here, {wheels[0].name} and {wheels[1].name}; delete the old one")
    _unpacked = tempfile.TemporaryDirectory(prefix="mdir-hf-")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(_unpacked.name)
    sys.path.insert(0, _unpacked.name)
    space = os.environ.get("SPACE_ID")
    if space:
        # What visitors are told to install, as long as no index has the package.
        hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        os.environ.setdefault("MDIR_HF_ORIGIN", f"{hub}/spaces/{space}/resolve/main/{wheels[0].name}")
    return Path(_unpacked.name)
