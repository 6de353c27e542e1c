"""Do two language models share weight ancestry? An answer from the weights alone, with a p-value."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mdir_hf._version import __version__

if TYPE_CHECKING:
    from mdir_hf.checker import HomologyChecker
    from mdir_hf.errors import MdirError
    from mdir_hf.report import HomologyReport, Reason, Verdict

_HOME_OF = {
    "HomologyChecker": "mdir_hf.checker",
    "HomologyReport": "mdir_hf.report",
    "MdirError": "mdir_hf.errors",
    "Reason": "mdir_hf.report",
    "Verdict": "mdir_hf.report",
}

__all__ = ["HomologyChecker", "HomologyReport", "MdirError", "Reason", "Verdict", "__version__"]


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that ``import mdir_hf`` costs no torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mdir_hf' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
