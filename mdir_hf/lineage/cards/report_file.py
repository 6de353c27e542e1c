"""Read a report from a local file."""

from __future__ import annotations

import os
from pathlib import Path

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.errors import InputError, naming
from mdir_hf.report import HomologyReport

REPORT_NAME = "report.json"
MOST_BYTES = REPORT_JSON.n_bytes


def read_report(path: str | os.PathLike[str]) -> HomologyReport:
    """Read a report from a local file.

    Raises:
        InputError: If it cannot be read, or is not a report.
    """
    name = os.fspath(path)
    with naming(name):
        return HomologyReport.from_json(local_text(name))


def local_text(name: str) -> str:
    """Return the contents of a text file of limited size.

    Raises:
        InputError: If it cannot be read, is larger than :data:`MOST_BYTES`, or is not UTF-8.
    """
    path = Path(name)
    try:
        if not path.is_file():
            raise InputError("there is no such file", subject=name)
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise InputError(f"cannot be read: {exc.strerror}", subject=name) from exc
    if len(content) > MOST_BYTES:
        raise InputError(f"has more than {MOST_BYTES:,} bytes, the limit for reports", subject=name)
    return decoded(content, name)


def decoded(content: bytes, name: str) -> str:
    """Decode UTF-8 without its byte order mark.

    Raises:
        InputError: If the content is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InputError("is not a text in UTF-8", subject=name) from exc
