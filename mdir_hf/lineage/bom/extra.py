"""The extra that bills of materials need; imported before anything heavy is."""

from __future__ import annotations

from importlib.util import find_spec

from mdir_hf.errors import MissingExtraError
from mdir_hf.installing import install_command


def require_extra() -> None:
    """Raise an error that names the extra unless cyclonedx-python-lib is installed.

    Raises:
        MissingExtraError: If it is not.
    """
    if find_spec("cyclonedx") is None:
        raise MissingExtraError(f"bills of materials are written with cyclonedx-python-lib: {install_command('bom')}")
