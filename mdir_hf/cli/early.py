"""Check names, paths and small files before a command imports torch, which takes seconds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from mdir_hf.errors import InputError
from mdir_hf.regular_file import open_regular

LENGTH_BYTES = 8
"""Length of the number before the header of an index."""

TEXTS = frozenset({"", ".json", ".txt", ".md", ".jinja", ".py", ".toml", ".yaml", ".yml"})
"""Suffixes of files that are no weights."""


def check_early(options: argparse.Namespace) -> None:
    """Check all arguments of a command that need neither weights nor the network.

    Raises:
        InputError: If a name of a model is invalid or a path that does not exist, an input file cannot be read, or an
            output cannot be written.
    """
    names = [*typed_models(options), *_listed_models(options)]
    if names:
        from mdir_hf.model.hub import parse_reference

        for name in names:
            parse_reference(name)
        for name in _compared_models(options):
            _check_folder(parse_reference(name).folder, name)
    if getattr(options, "output", None) is not None:
        options.check_output(options.output)
    if hasattr(options, "check_files"):
        options.check_files(options)


def typed_models(options: argparse.Namespace) -> list[str]:
    """Return the models that are named by arguments for one model each."""
    return [name for key in ("reference", "candidate", "model", "repo") if (name := getattr(options, key, None))]


def _compared_models(options: argparse.Namespace) -> list[str]:
    return [name for key in ("reference", "candidate", "model") if (name := getattr(options, key, None))]


def _check_folder(folder: Path | None, name: str) -> None:
    """Raise ``InputError`` if a model's folder only has texts, such as a config without weights."""
    if folder is None:
        return
    try:
        paths = list(folder.iterdir())
    except OSError:
        return  # the error of opening it says more
    names = [path.name for path in paths if not path.name.endswith(".index.json")]
    if len(names) == len(paths) and all(path.suffix in TEXTS and path.is_file() for path in paths):
        found = f"{len(names)} files ({', '.join(sorted(names)[:3])} …)" if len(names) > 3 else ", ".join(sorted(names))
        raise InputError(f"no weights{f', only {found}' if names else ', and no other file'}", subject=name)


def _listed_models(options: argparse.Namespace) -> Iterator[str]:
    """Yield names from arguments for many models, unless the command says which of them are models."""
    if hasattr(options, "listed_models"):
        yield from options.listed_models(options)
        return
    for key in ("models", "among"):
        yield from getattr(options, key, None) or ()


def check_input_file(path: Path) -> None:
    """Raise ``InputError`` unless a path is a regular file that can be read."""
    open_regular(path).close()


def check_index(path: Path) -> None:
    """Raise ``InputError`` unless a path is a regular file that begins as an index of base models does."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        n_bytes = path.stat().st_size - LENGTH_BYTES
        if file.read(1) != b"{" or length > n_bytes:
            raise InputError("is not an index of base models", subject=str(path))


def check_save_folder(folder: Path) -> None:
    """Raise ``InputError`` if a path is not a folder, or files cannot be saved there; its parents need not exist."""
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"cannot save into {folder}: it is a file; name a folder")
        parent = folder
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir():
            raise InputError(f"cannot save into {folder}: {parent} is a file; name another folder")
    except OSError as exc:  # a name that is too long, or a folder that may not be entered
        raise InputError(f"cannot save into {folder}: {exc.strerror}") from exc
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot save into {folder}: {parent} is not writable")


def check_save_file(path: Path) -> None:
    """Raise ``InputError`` if a path is a folder, or a file cannot be written there; its parents need not exist."""
    check_save_folder(path.parent)
    try:
        is_folder = path.is_dir()
    except OSError as exc:
        raise InputError(f"cannot be written: {exc.strerror}", subject=str(path)) from exc
    if is_folder:
        raise InputError("cannot be written: it is a folder; name a file", subject=str(path))
