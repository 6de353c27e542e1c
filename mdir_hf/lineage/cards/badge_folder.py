"""Writes a badge as files: picture, snippet and endpoint, beside the report they were made from."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.lineage.cards.badge import Badge
from mdir_hf.lineage.cards.claim import claim_of_report
from mdir_hf.lineage.cards.report_file import REPORT_NAME, read_report
from mdir_hf.render.folder import write_file
from mdir_hf.report import HomologyReport


def write_badge(badge: Badge, report: HomologyReport, snippet: str, folder: Path) -> tuple[Path, ...]:
    """Write badge.svg, badge.md, badge.json, and report.json unless it lies there.

    Args:
        badge: The badge of the report.
        report: The report.
        snippet: The Markdown.
        folder: Made if it does not exist.

    Returns:
        The paths written. A new folder is made beside its place and moved there, so that an interruption leaves all of
        it or nothing. In one that exists each file is whole, and the picture comes last.

    Raises:
        InputError: If the folder cannot be written, or holds the report of another comparison.
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
                made = Path(aside, folder.name)
                made.mkdir()
                _write(contents, made)
                made.replace(folder)
        return tuple(folder / name for name in contents)
    except OSError as exc:
        raise InputError(f"cannot write into {folder}: {exc.strerror}") from exc


def _write(contents: Mapping[str, str], folder: Path) -> None:
    for name, text in contents.items():
        write_file(folder / name, text.encode("utf-8"))


def _holds(path: Path, badge: Badge) -> bool:
    """Tell whether the report lies there already; another one is not overwritten."""
    if not path.exists():
        return False
    try:
        is_same = claim_of_report(read_report(path)) == badge.claim
    except InputError:
        is_same = False
    if not is_same:
        raise InputError("is not the report of this badge; name another folder with --output").about(str(path))
    return True
