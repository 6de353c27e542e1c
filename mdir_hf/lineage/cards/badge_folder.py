"""Read a report from a file, and write its badge next to it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mdir_hf.budgets import REPORT_JSON
from mdir_hf.errors import InputError, naming
from mdir_hf.lineage.cards.badge import Badge
from mdir_hf.lineage.cards.claim import claim_of_report
from mdir_hf.report import HomologyReport
from mdir_hf.writing import write_file

REPORT_NAME = "report.json"
MOST_BYTES = REPORT_JSON.n_bytes


def read_report(path: str | os.PathLike[str]) -> HomologyReport:
    """Read a report from a local file.

    Raises:
        InputError: If the file cannot be read, or is not a report.
    """
    name = os.fspath(path)
    with naming(name):
        return HomologyReport.from_json(local_text(name))


def local_text(name: str) -> str:
    """Return the contents of a text file of at most :data:`MOST_BYTES`, or raise ``InputError``."""
    path = Path(name)
    try:
        if path.is_dir():
            raise InputError("is a folder; name the file in it", subject=name)
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
    """Decode UTF-8 without its byte order mark, or raise ``InputError``."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InputError("is not a text in UTF-8", subject=name) from exc


def write_badge(badge: Badge, report: HomologyReport, snippet: str, folder: Path) -> tuple[Path, ...]:
    """Write badge.svg, badge.md, badge.json and, if missing, report.json; return the paths.

    Each file is replaced atomically.

    Raises:
        InputError: If the folder cannot be written, or contains another comparison's report.
    """
    contents = {
        REPORT_NAME: f"{report.to_json()}\n",
        "badge.md": f"{snippet}\n",
        "badge.json": badge.endpoint_json,
        "badge.svg": badge.svg,
    }
    try:
        if folder.exists():
            if _holds(folder / REPORT_NAME, badge):
                del contents[REPORT_NAME]
            _write(contents, folder)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
                new_folder = Path(aside, folder.name)
                new_folder.mkdir()
                _write(contents, new_folder)
                new_folder.replace(folder)
        return tuple(folder / name for name in contents)
    except OSError as exc:
        raise InputError(f"cannot write into {folder}: {exc.strerror}") from exc


def _write(contents: Mapping[str, str], folder: Path) -> None:
    for name, text in contents.items():
        write_file(folder / name, text.encode("utf-8"))


def _holds(path: Path, badge: Badge) -> bool:
    if not path.exists():
        return False
    try:
        is_same = claim_of_report(read_report(path)) == badge.claim
    except InputError:
        is_same = False
    if not is_same:
        raise InputError("is not the report of this badge; name another folder with --output").about(str(path))
    return True
