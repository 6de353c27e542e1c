"""Recognises files that are not checkpoints by their first bytes."""

from __future__ import annotations

from pathlib import Path

_N_LOOKED_AT = 512
_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n", "a PNG"),
    (b"\xff\xd8\xff", "a JPEG"),
    (b"GIF8", "a GIF"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"GGUF", "a GGUF file under another name; let it end in .gguf"),
    (b"version https://git-lfs", "a Git LFS pointer, whose file was not downloaded (`git lfs pull` does it)"),
    (b"\x7fELF", "a program"),
    (b"#!", "a script"),
)


def kind_of_file(path: Path) -> str:
    """Describe a file by its content: ``a PNG``, ``an HTML page``, ``a text file``."""
    try:
        with path.open("rb") as file:
            head = file.read(_N_LOOKED_AT)
    except OSError as exc:
        return f"a file that cannot be read ({exc.strerror})"
    if not head:
        return "an empty file"
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return kind
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page"
    if b"\0" in head:
        return "a binary file of another kind"
    return "a JSON file" if start.startswith((b"{", b"[")) else "a text file"
