"""Write the files of a folder together, and continue a run that was killed.

Files are staged in a hidden folder of the output, so they are on its disk. When all are whole, one rename of a manifest
with their hashes settles that they replace the earlier files; only then are they moved to their names. The next run
continues from the staged files of a run that was killed before this rename, and finishes one that was killed after it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal

from filelock import FileLock, Timeout

from mdir_hf.budgets import INDEX_JSON
from mdir_hf.errors import CompleteOutputError, InputError
from mdir_hf.validation import AS_WRITTEN, read_json

HIDDEN = ".mdir-hf"
"""Folder for the lock, the manifest and staged files, inside the output."""

SCHEMA: Literal["mdir-hf/output/1"] = "mdir-hf/output/1"

WAIT_S = 10.0
"""Time to wait for another process that writes small files, in seconds."""


def write_file(path: Path, content: bytes) -> Path:
    """Write a file to a temporary path, then move it into place."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


@contextmanager
def writing_into(folder: Path, subject: Path | None = None) -> Iterator[None]:
    """Create a folder, and convert write errors in the block to ``InputError`` about ``subject`` or the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as exc:
        if isinstance(exc, InputError):
            raise
        raise InputError(f"cannot write there: {exc.strerror}", subject=str(subject or folder)) from exc


@contextmanager
def locked(lock_file: Path, subject: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Let no other process take the same lock during the block. Errors name ``subject``.

    Raises:
        InputError: If another process holds the lock, or the lock file cannot be written.
    """
    lock, owner = FileLock(lock_file), lock_file.with_name(f"{lock_file.name}-owner")
    with writing_into(lock_file.parent, subject):
        try:
            lock.acquire(timeout=wait_s)
        except Timeout:
            whose = owner.read_text(encoding="utf-8", errors="replace")[:200] if owner.exists() else "another process"
            raise InputError(
                f"{whose} is writing there; wait until it ends, or name another place", subject=str(subject)
            ) from None
        except NotImplementedError as exc:
            raise InputError(
                "its file system has no locks; name a place on another disk", subject=str(subject)
            ) from exc
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        write_file(owner, f"process {os.getpid()} on {socket.gethostname()}, since {since},".encode())
    try:
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


Note = str | list[tuple[str, float | None]] | None
"""A program's note on a file: a digest, or a number for each tensor."""


@dataclass(frozen=True)
class WrittenFile:
    """A whole file: its size in bytes, its SHA-256, and a note of the program that wrote it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    n_bytes: int
    sha256: str
    note: Note = None


@dataclass(frozen=True)
class Manifest:
    """The files of an output.

    Attributes:
        inputs: Digest of everything that determines the files; None for files that are simply replaced.
        is_whole: Whether all files are written. If they are still staged, they have to be moved to their names.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = AS_WRITTEN

    schema: Literal["mdir-hf/output/1"]
    inputs: str | None
    is_whole: bool = False
    files: dict[str, WrittenFile] = field(default_factory=dict)


class Output:
    """A folder whose files appear together when :meth:`finish` is called. Use it in a ``with`` block.

    Args:
        folder: The output, which may exist.
        inputs: Digest of everything that determines the files. The folder must then be empty, or hold an unfinished
            output of the same inputs, whose whole files are kept. If None, any earlier files may stay beside the new.
        restart: Start again, and replace a finished output.

    Raises:
        CompleteOutputError: If the folder holds the finished output of the same inputs.
        InputError: If another process writes there, the folder holds something else, or it cannot be written.
    """

    def __init__(self, folder: Path, inputs: str | None, *, restart: bool = False) -> None:
        self.folder = folder
        self._inputs, self._restart = inputs, restart
        hidden = folder / HIDDEN
        self._hidden, self._staged, self._next, self._last = (
            hidden, hidden / "staged", hidden / "next.json", hidden / "manifest.json",
        )  # fmt: skip
        self._stack = ExitStack()

    def __enter__(self) -> Output:
        is_new = not self.folder.exists()
        wait_s = WAIT_S if self._inputs is None else 0.0
        with self._stack:
            self._stack.enter_context(locked(self._hidden / "lock", self.folder, wait_s=wait_s))
            self._stack.callback(self._remove_if_empty, is_new=is_new)
            with writing_into(self._staged, self.folder):
                self._open()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self) -> None:
        unfinished = self._read(self._next)
        if unfinished is not None and unfinished.is_whole:
            self._move(unfinished)
            unfinished = None
        is_continued = False
        if self._inputs is not None:
            self._expect_own(unfinished, self._read(self._last))
            is_continued = not self._restart
        elif unfinished is not None and unfinished.inputs is not None:
            raise InputError(
                "it holds an unfinished output of another command; finish that first, or name another folder",
                subject=str(self.folder),
            )
        whole = unfinished.files if unfinished is not None and is_continued else {}
        for path in self._staged.iterdir():
            file = whole.get(path.name) if path.is_file() else None
            if file is None or file != _described(path, file.note):
                path.unlink()
        whole = {name: file for name, file in whole.items() if self.place(name).exists()}
        self._manifest = Manifest(SCHEMA, self._inputs, files=whole)

    def _expect_own(self, unfinished: Manifest | None, finished: Manifest | None) -> None:
        subject, again = str(self.folder), "name another folder, or start again with --restart"
        is_ours = finished is not None and finished.inputs is not None
        if not is_ours and any(path.name != HIDDEN for path in self.folder.iterdir()):
            raise InputError("it is not empty; name a folder that does not exist", subject=subject)
        if self._restart:
            return
        for manifest, state in ((unfinished, "an unfinished output"), (finished, "the output")):
            if manifest is not None and manifest.inputs != self._inputs:
                raise InputError(f"it holds {state} of other models, options or versions; {again}", subject=subject)
        if finished is not None:
            for name, file in finished.files.items():
                if not (self.folder / name).is_file() or _described(self.folder / name, file.note) != file:
                    raise InputError(f"its {name} has changed since it was written; {again}", subject=subject)
            raise CompleteOutputError("it is complete; to write it again, add --restart", subject=subject)

    def place(self, name: str) -> Path:
        """Return the path at which a file is staged."""
        return self._staged / name

    def kept(self, name: str) -> WrittenFile | None:
        """Return the record of a file that is staged and whole, or None."""
        return self._manifest.files.get(name)

    def keep(self, name: str, note: Note = None) -> None:
        """Record that a staged file is whole, with a note for a later run."""
        with writing_into(self._staged, self.folder):
            with self.place(name).open("rb+") as file:
                os.fsync(file.fileno())
            files = {**self._manifest.files, name: _described(self.place(name), note)}
            self._manifest = replace(self._manifest, files=files)
            self._write(self._manifest)

    def put(self, name: str, content: bytes, note: Note = None) -> None:
        """Stage a small file; see :meth:`keep`."""
        with writing_into(self._staged, self.folder):
            write_file(self.place(name), content)
        self.keep(name, note)

    def forget(self) -> None:
        """Remove all staged files, which do not fit any more."""
        self._manifest = replace(self._manifest, files={})
        with writing_into(self._staged, self.folder):
            self._next.unlink(missing_ok=True)
            for path in self._staged.iterdir():
                path.unlink()

    def finish(self) -> tuple[Path, ...]:
        """Move all staged files to their names, in the order in which they were kept, and return their paths."""
        self._manifest = replace(self._manifest, is_whole=True)
        with writing_into(self._staged, self.folder):
            self._write(self._manifest)
            self._move(self._manifest)
        return tuple(self.folder / name for name in self._manifest.files)

    def _move(self, manifest: Manifest) -> None:
        """Finish an output whose manifest is in place; a second call continues after a kill."""
        earlier = self._read(self._last) or Manifest(SCHEMA, None)
        for name in manifest.files:
            with suppress(FileNotFoundError):  # moved before a kill
                self.place(name).replace(self.folder / name)
        if manifest.inputs is not None:
            for name in earlier.files.keys() - manifest.files.keys():
                (self.folder / name).unlink(missing_ok=True)
        elif earlier.inputs is not None:
            manifest = earlier
        else:
            manifest = replace(manifest, files={**earlier.files, **manifest.files})
        write_file(self._last, _text(manifest))
        self._next.unlink()

    def _read(self, path: Path) -> Manifest | None:
        if not path.is_file():
            return None
        read = partial(read_json, what="the manifest", label=str(path), budget=INDEX_JSON, error=InputError)
        try:
            if path.stat().st_size > INDEX_JSON.n_bytes:
                raise InputError("the manifest is too large", subject=str(path))
            manifest = read(path.read_bytes(), Manifest)
            for name in manifest.files:
                if Path(name).name != name or not name or name.startswith(".") or not {"\\", "\0"}.isdisjoint(name):
                    raise InputError(f"the manifest names {name!r:.80}, which is not written there", subject=str(path))
        except InputError as exc:
            raise InputError(f"{exc.message}; name another folder, or remove {HIDDEN}", subject=exc.subject) from exc
        return manifest

    def _write(self, manifest: Manifest) -> None:
        write_file(self._next, _text(manifest))

    def _remove_if_empty(self, *, is_new: bool) -> None:
        """Leave no trace of a run that ended before it wrote anything."""
        with suppress(OSError):
            self._staged.rmdir()
        if self._next.exists() or self._last.exists():
            return
        shutil.rmtree(self._hidden, ignore_errors=True)
        if is_new:
            with suppress(OSError):
                self.folder.rmdir()


def _described(path: Path, note: Note = None) -> WrittenFile:
    digest, n_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            n_bytes += len(block)
    return WrittenFile(n_bytes, digest.hexdigest(), note)


def _text(manifest: Manifest) -> bytes:
    return (json.dumps(asdict(manifest), allow_nan=False) + "\n").encode()


def write_together(folder: Path, contents: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write files into a folder that may hold others, all or none of them, and return their paths.

    Raises:
        InputError: If the folder cannot be written, or another process writes there for a long time.
    """
    with Output(folder, None) as output:
        for name, content in contents.items():
            output.put(name, content)
        return output.finish()
