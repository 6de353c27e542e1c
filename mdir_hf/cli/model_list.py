"""A list of models on the command line: given one by one, in files, or by the Hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from mdir_hf.cli.output import remark
from mdir_hf.errors import InputError


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options that name many models. The command itself adds ``--token`` and ``--local-files-only``."""
    parser.add_argument("models", metavar="REPO", nargs="*", help="owner/name, owner/name@revision, a folder or a file")
    parser.add_argument("--from", dest="lists", metavar="FILE", type=Path, action="append", default=[],
                        help="file with one model per line (# starts a comment; repeatable)")  # fmt: skip
    parser.add_argument("--author", metavar="NAME", action="append", default=[],
                        help="models of a user or organisation, most downloads first (repeatable)")  # fmt: skip
    parser.add_argument("--limit", type=int, default=100, help="most models of one author (default 100)")
    parser.add_argument("--any-task", action="store_true", help="include models that the Hub lists under other tasks")
    parser.add_argument("--collection", metavar="SLUG", action="append", default=[],
                        help="models of a collection, by slug or URL (repeatable)")  # fmt: skip


def is_list_given(options: argparse.Namespace) -> bool:
    """Return whether any model was named in any way."""
    return bool(options.models or options.lists or options.author or options.collection)


def list_usage_error(options: argparse.Namespace) -> str | None:
    """Return the error message for options that name models and cannot be combined."""
    if (options.author or options.collection) and options.local_files_only:
        return "--author and --collection need the network, which --local-files-only forbids"
    return None


def listed_models(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the models in the order of the command line, each once.

    Raises:
        InputError: If a file cannot be read, or a list of the Hub is empty.
        HubError: If a request to the Hub fails.
    """
    names = list(options.models)
    for path in options.lists:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            raise InputError(f"cannot read the list of models {path}: {exc}") from exc
        names += [name for line in lines if (name := line.split("#")[0].strip())]
    return tuple(dict.fromkeys([*names, *_listed(options)]))


def _listed(options: argparse.Namespace) -> list[str]:
    """Return the models that the Hub lists."""
    from mdir_hf.model.hub import models_of_author, models_of_collection

    names: list[str] = []
    for author in options.author:
        listing = models_of_author(
            author, limit=options.limit, text_generation=not options.any_task, token=options.token
        )
        names += listing.names
        if listing.is_cut:
            remark(f"{author}: only the {options.limit} models with most downloads; raise --limit for more\n")
    for collection in options.collection:
        names += models_of_collection(collection, token=options.token).names
    return names
