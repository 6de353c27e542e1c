r"""Make untrusted text safe to display, check names and paths, and distinguish paths from Hub names.

All text for a terminal, log, page or document passes through :func:`visible_text`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from mdir_hf.errors import InvalidReferenceError, UnsafePathError

ELLIPSIS = "…"
LONGEST_TEXT = 4000
"""Maximum number of characters in a displayed text."""

_BLANKS = re.compile(r"[\s\x1c-\x1f\x85\u2028\u2029]+")
_DRIVE = re.compile(r"^[A-Za-z]:")
_WRITTEN_OUT = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories to escape: control, format (invisible and bidirectional), surrogate, line and paragraph breaks."""


def visible_text(text: str, *, length: int | None = None, keeps_lines: bool = False) -> str:
    r"""Escape control characters, bidirectional controls and lone surrogates in a text, as in JSON.

    Args:
        text: Any text.
        length: Maximum length in characters, at least 3, or None. Longer text is shortened in the middle.
        keeps_lines: Whether to keep line breaks and tabs, which otherwise become spaces.
    """
    if length is not None and len(text) > 20 * length:
        # Shorten it before scanning it, with a margin for runs of whitespace that collapse.
        text = text[: 10 * length] + ELLIPSIS + text[-10 * length :]
    if not keeps_lines:
        text = _BLANKS.sub(" ", text).strip()
    if not text.isprintable():
        text = "".join(c if c.isprintable() or (keeps_lines and c in "\n\t") else _written(c) for c in text)
    if length is None or len(text) <= length:
        return text
    head = (length - 1) // 2
    return text[:head] + ELLIPSIS + text[len(text) - (length - 1 - head) :]


def shown_name(name: str, *, length: int = 60) -> str:
    """Return a name as one non-empty line of at most ``length`` characters, which must be at least 3."""
    return visible_text(name, length=length) or "(no name)"


def without_folders(names: Sequence[str]) -> tuple[str, ...]:
    """Return names for a plot, with local paths shortened to their last part if that is unique."""
    last = [Path(name).name or name if name.startswith(("/", "~", ".")) else name for name in names]
    return tuple(short if last.count(short) == 1 else name for short, name in zip(last, names, strict=True))


def without_common_folder(names: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Split local paths into the folder that all share and the rest; names on the Hub are returned unchanged."""
    parts = [Path(name).parts for name in names]
    if len(names) < 2 or not all(name.startswith(("/", "~", ".")) for name in names):
        return None, tuple(names)
    shortest = min(map(len, parts)) - 1
    n_common = next((at for at in range(shortest) if len({path[at] for path in parts}) > 1), shortest)
    if n_common < 1 or len(set(names)) < 2:
        return None, tuple(names)
    return str(Path(*parts[0][:n_common])), tuple(str(Path(*path[n_common:])) for path in parts)


def without_folder(text: str, names: Sequence[str]) -> str:
    """Leave the folder that all names share out of a text about them, and state it once on the first line."""
    folder, _ = without_common_folder(names)
    return text if folder is None else "in " + folder + ":\n" + text.replace(folder.rstrip("/") + "/", "")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` with the known name closest to a word, or an empty string if none is close."""
    by_lower = {name.lower(): name for name in names if name != word}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.75)
    close += [name for name in by_lower if len(word) > 1 and name.startswith(word.lower())]
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def _written(character: str) -> str:
    if unicodedata.category(character) not in _WRITTEN_OUT:
        return character  # whitespace other than a space, or an unassigned character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def quoted(value: object, longest: int) -> str:
    """Return the repr of a value in ASCII, cut to ``longest`` characters."""
    return _cut(ascii(value), longest)


def unquoted(text: str, longest: int = 200) -> str:
    """Return a text escaped to ASCII, without quotes, cut to ``longest`` characters."""
    return _cut(ascii(text)[1:-1], longest)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


WEIGHT_SUFFIXES = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".onnx",
)
"""Suffixes of files that can be given as a model."""

_PATH = re.compile(r"^(\.{1,2}($|[/\\])|[/~\\]|[A-Za-z]:[/\\])|\\")


def looks_like_a_path(text: str) -> bool:
    """Return whether a name must be a path, because of how it begins or because it contains a backslash."""
    return _PATH.search(text) is not None


def missing_path(text: str) -> InvalidReferenceError:
    """Return the error for a path that does not exist, suggesting the closest name in its folder."""
    is_weight_file = text.lower().endswith(WEIGHT_SUFFIXES)
    kind = "file" if is_weight_file else "folder"
    hint = did_you_mean(text, names_beside(text))
    return InvalidReferenceError(f"there is no such {kind} here{hint}", subject=text)


def names_beside(text: str) -> list[str]:
    """Return the paths of all entries in a path's parent folder, with the folder written as in the path."""
    folder, slash, _ = text.rstrip("/").rpartition("/")
    try:
        return [folder + slash + path.name for path in Path(folder + slash or ".").expanduser().iterdir()]
    except (OSError, RuntimeError):
        return []


def is_repo_id(text: object) -> bool:
    """Return whether a value is a valid repo id on the Hub, in plain ASCII."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if not isinstance(text, str) or not text.isascii():
        return False
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


def safe_path(path: str, *, subject: str | None = None) -> str:
    """Return a ``/``-separated path, after checking that it stays inside a repository on any operating system.

    Raises:
        UnsafePathError: If the path is empty or absolute, or contains a drive, a backslash, a control character, or an
            empty, ``.`` or ``..`` part.
    """
    why = None
    if not path or path.startswith("/") or _DRIVE.match(path):
        why = "it is empty or absolute"
    elif "\\" in path:
        why = "it contains a backslash"
    elif any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        why = "it contains control characters"
    elif any(part in ("", ".", "..") for part in path.split("/")):
        why = "it has an empty, '.' or '..' part"
    if why is not None:
        raise UnsafePathError(
            f"the file name {path!r} is rejected, {why}; it could leave the repository", subject=subject
        )
    return path
