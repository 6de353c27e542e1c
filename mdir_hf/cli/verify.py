"""``mdir-hf verify``, which checks what a model card, a bill of materials, a merge recipe or a badge states."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence, Set
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mdir_hf.cli import arguments
from mdir_hf.cli.early import check_input_file
from mdir_hf.cli.output import complain, loading, say, shown_if_stopped
from mdir_hf.errors import InputError
from mdir_hf.lineage.policy import Condition, Failure, exit_status
from mdir_hf.names import did_you_mean
from mdir_hf.report import Level

BESIDE = Path()
"""Value of ``--mergekit`` if it is given without a file."""

EVERYTHING = "all"
MOST_SHOWN = 1000
"""Maximum number of failures on standard error; JSON has all."""

_CONDITIONS_OF = {
    "bill of materials": frozenset({Condition.PINS, Condition.DIGESTS, Condition.BASES}),
    "model card": frozenset({Condition.BASES, Condition.RELATIONS}),
    "recipe": frozenset({Condition.BASES}),
    "badge": frozenset({Condition.PINS, Condition.BASES}),
}
"""Conditions that each kind of document can be held to."""


class Check(Protocol):
    """A result of one of the checks."""

    def failures(self, required: Set[Condition]) -> tuple[Failure, ...]: ...  # noqa: D102

    def to_dict(self) -> dict[str, Any]: ...  # noqa: D102


def add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``verify`` command."""
    parser = commands.add_parser(
        "verify",
        help="check a model card, a bill of materials, a merge recipe or a badge",
        description="Check what others state about models. `verify MODEL` compares a model with every base that its "
        "card declares, `verify --bom FILE` checks a bill of materials, `verify MODEL --mergekit` a merge recipe, and "
        "`verify --badge BADGE` recomputes a badge from the commits that it names. Exits with 3 if a statement is "
        "contradicted or a condition of --require is not met, and with 1 if the Hub cannot be read.",
    )
    parser.add_argument(
        "repo", metavar="MODEL", nargs="?", help="owner/name, owner/name@revision, a Hub URL, or a folder"
    )
    parser.add_argument(
        "--require",
        metavar="CONDITIONS",
        action="append",
        default=[],
        type=conditions,
        help="exit with 0 only if these conditions are met: all, or a comma-separated list of pins (every model has a "
        "commit that the Hub has), digests (the files have the stated digests), bases (there is a base, and the "
        "weights confirm every one) and relations (a model declared as quantised is confirmed to be the base's)",
    )
    arguments.add_bom(
        parser, "without MODEL, check this bill of materials; with MODEL, write the result there as CycloneDX"
    )
    parser.add_argument(
        "--mergekit",
        metavar="FILE",
        nargs="?",
        type=Path,
        const=BESIDE,
        help="test whether a mergekit recipe gives the model, and measure each parent's share in every layer "
        "(default: mergekit_config.yml beside the model)",
    )
    parser.add_argument(
        "--badge",
        metavar="BADGE",
        nargs="+",
        help="a badge SVG, a report, or an endpoint beside its report; local or on the Hub. Prints match, stale (the "
        "same result, but a model has changed since) or different",
    )
    arguments.add_settings(parser)
    arguments.add_json(parser)
    reading = arguments.add_reading(parser)
    arguments.add_model(reading)
    for side in ("reference", "candidate"):
        reading.add_argument(
            f"--{side}-tokenizer",
            metavar="REPO",
            help=f"repository or folder of the {side}'s vocabulary, if a badge only says that it was a folder",
        )
    arguments.add_computing(reading)
    parser.set_defaults(run=_run, usage_error=usage_error, check_files=_check_files, level=None)


def conditions(text: str) -> frozenset[str]:
    """Parse comma-separated conditions."""
    names = [name.strip() for name in text.split(",")]
    known = (EVERYTHING, *(condition.value for condition in Condition))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; the conditions are {', '.join(known)}"
            raise argparse.ArgumentTypeError(f"{name!r} is not a condition{hint}")
    return frozenset(names)


def usage_error(options: argparse.Namespace) -> str | None:
    """Return the error message for options that cannot be combined, or None."""
    if options.badge is not None:
        if options.repo is not None or options.bom is not None or options.mergekit is not None:
            return "--badge takes neither a model nor --bom or --mergekit: a badge names its models"
        if (options.alpha, options.seed, options.sample_seed) != (1e-10, 0, None):
            return "--badge takes alpha and seeds from the badge"
        if options.subfolder or options.variant or options.tokenizer or options.base:
            return "--badge reads models as the badge says; only --reference-tokenizer and --candidate-tokenizer apply"
    elif options.reference_tokenizer or options.candidate_tokenizer:
        return "--reference-tokenizer and --candidate-tokenizer need --badge"
    elif options.repo is None and (options.bom is None or options.mergekit is not None):
        return (
            "name a model (mdir-hf verify MODEL), a bill of materials (mdir-hf verify --bom FILE) or a badge "
            "(mdir-hf verify --badge BADGE)"
        )
    elif options.bom is not None and options.mergekit is not None:
        return "--bom and --mergekit exclude each other: a recipe is not a declaration of the card"
    kind = _kind(options)
    for name in sorted(frozenset().union(*options.require) - {EVERYTHING}):
        if name not in _CONDITIONS_OF[kind]:
            able = ", ".join(sorted(_CONDITIONS_OF[kind]))
            return f"--require {name}: a {kind} states no {name}; use {able}, or all"
    return None


def _kind(options: argparse.Namespace) -> str:
    if options.badge is not None:
        return "badge"
    if options.repo is None:
        return "bill of materials"
    return "model card" if options.mergekit is None else "recipe"


def _required(options: argparse.Namespace) -> frozenset[Condition]:
    names = frozenset().union(*options.require)
    return frozenset(one for one in _CONDITIONS_OF[_kind(options)] if one in names or EVERYTHING in names)


def _check_files(options: argparse.Namespace) -> None:
    for name in options.badge or ():
        if "://" not in name:
            check_input_file(Path(name))
            _check_badge(name)


def _check_badge(name: str) -> None:
    from mdir_hf.lineage.cards.badge_folder import local_text

    if not local_text(name).lstrip().startswith(("<", "{")):
        raise InputError("is neither SVG nor JSON", subject=name)


def _run(options: argparse.Namespace) -> int:
    if options.badge is not None:
        return _run_on_badges(options)
    if options.repo is None:
        return _run_on_bom(options)
    return _run_on_card(options) if options.mergekit is None else _run_on_merge(options)


def _run_on_card(options: argparse.Namespace) -> int:
    arguments.expect_writable_bom(options)
    with loading():
        from mdir_hf.lineage.cards.verify_lineage import verify_lineage

    with shown_if_stopped(partial(_show, options=options)) as keep:
        check = verify_lineage(
            arguments.model_of(options, options.repo),
            reading=arguments.reading_of(options),
            settings=arguments.settings_of(options),
            listeners=arguments.listeners_of(options),
            on_step=keep,
        )
    _show(check, options)
    arguments.write_bom(options, check, options.repo)
    return _status([check], options)


def _run_on_bom(options: argparse.Namespace) -> int:
    from mdir_hf.lineage.bom.read import read_bom_file
    from mdir_hf.lineage.bom.result import result_without_hub

    document = read_bom_file(options.bom)
    known = result_without_hub(document)
    if known is not None:
        _show(known, options)
        return _status([known], options)
    with loading():
        from mdir_hf.lineage.bom.check import check_bom

    with shown_if_stopped(partial(_show, options=options)) as keep:
        check = check_bom(
            document,
            reading=arguments.reading_of(options),
            settings=replace(arguments.settings_of(options), max_bytes=None),
            listeners=arguments.listeners_of(options),
            max_bytes=options.max_bytes,
            on_step=keep,
        )
    _show(check, options)
    return _status([check], options)


def _run_on_merge(options: argparse.Namespace) -> int:
    recipe_file = None if options.mergekit == BESIDE else options.mergekit
    if recipe_file is not None:
        from mdir_hf.lineage.recipe import read_recipe_file

        read_recipe_file(recipe_file)
    with loading():
        from mdir_hf.lineage.verify_merge import verify_merge

    check = verify_merge(
        arguments.model_of(options, options.repo),
        recipe_file,
        reading=arguments.reading_of(options),
        settings=arguments.settings_of(options),
        listeners=arguments.listeners_of(options),
    )
    _show(check, options)
    return _status([check], options)


def _run_on_badges(options: argparse.Namespace) -> int:
    with loading():
        from mdir_hf.comparison.settings import Settings
        from mdir_hf.lineage.cards.verify_badge import verify_badge

    checks = [
        verify_badge(
            badge,
            level=None if options.level is None else Level(options.level),
            reading=arguments.reading_of(options),
            tokenizers=(options.reference_tokenizer, options.candidate_tokenizer),
            settings=Settings(device=options.device, max_bytes=options.max_bytes, max_memory_bytes=options.max_memory),
            listeners=arguments.listeners_of(options),
        )
        for badge in options.badge
    ]
    if options.json and len(checks) > 1:
        say(json.dumps({"badges": [_to_dict(check, options) for check in checks]}, indent=2) + "\n")
    else:
        for check in checks:
            _show(check, options)
    return _status(checks, options)


def _show(check: Check, options: argparse.Namespace) -> None:
    text = json.dumps(_to_dict(check, options), indent=2) if options.json else str(check)
    say(text + "\n", is_prose=not options.json)


def _to_dict(check: Check, options: argparse.Namespace) -> dict[str, Any]:
    required = _required(options)
    failures = [asdict(failure) for failure in check.failures(required)]
    return {**check.to_dict(), "required": sorted(required), "failures": failures}


def _status(checks: Sequence[Check], options: argparse.Namespace) -> int:
    failures = [failure for check in checks for failure in check.failures(_required(options))]
    for failure in failures[:MOST_SHOWN]:
        complain(str(failure), label="mdir-hf: not read:" if failure.is_unread else "mdir-hf: not so:")
    if len(failures) > MOST_SHOWN:
        complain(f"{len(failures) - MOST_SHOWN:,} more statements; --json has all", label="mdir-hf: not so:")
    return exit_status(failures)
