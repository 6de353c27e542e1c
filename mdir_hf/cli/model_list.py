"""A list of models on the command line: named one by one, in files, or by the Hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from mdir_hf.cli.output import remark
from mdir_hf.errors import InputError


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the ways of naming many models. The command itself has ``--token`` and ``--local-files-only``."""
    parser.add_argument("models", metavar="REPO", nargs="*", help="owner/name, owner/name@revision, a folder or a file")
    parser.add_argument("--from", dest="lists", metavar="FILE", type=Path, action="append", default=[],
                        help="file with a model on each line (# begins a comment; repeatable)")  # fmt: skip
    parser.add_argument("--author", metavar="NAME", action="append", default=[],
                        help="models of a user or organisation, most downloaded first (repeatable)")  # fmt: skip
    parser.add_argument("--limit", type=int, default=100, help="how many models of an author at most (default 100)")
    parser.add_argument(
        "--any-task", action="store_true", help="also models that the Hub lists under another task than text generation"
    )
    parser.add_argument("--collection", metavar="SLUG", action="append", default=[],
                        help="the models of a collection, by slug or address (repeatable)")  # fmt: skip


def is_list_given(options: argparse.Namespace) -> bool:
    """Whether any model was named in any way."""
    return bool(options.models or options.lists or options.author or options.collection)


def list_usage_error(options: argparse.Namespace) -> str | None:
    """Return the problem of options that name models and cannot be used together."""
    if (options.author or options.collection) and options.local_files_only:
        return "--local-files-only uses no network, and --author and --collection need it"
    return None


def listed_models(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the models in the order in which they were named, each once.

    Raises:
        InputError: If a file cannot be read, or a list of the Hub is empty.
        HubError: If the Hub cannot be asked.
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
    """What the Hub lists."""
    from mdir_hf.model.hub import models_of_author, models_of_collection

    names: list[str] = []
    for author in options.author:
        found = models_of_author(author, limit=options.limit, text_generation=not options.any_task, token=options.token)
        names += found.names
        if found.is_cut:
            remark(f"{author}: the {options.limit} most downloaded of more models; --limit takes more\n")
    for collection in options.collection:
        names += models_of_collection(collection, token=options.token).names
    return names
