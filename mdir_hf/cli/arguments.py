"""What several commands ask for in the same words."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mdir_hf.comparison.plan import ReadPlan

EXIT_NAMED = 3
"""Exit status where the outcome is one named by ``--fail-on``."""

LEVELS = ("auto", "screen", "embedding", "body")
VERDICTS = ("homologous", "no_evidence", "inconclusive")
SIZE_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def alpha(text: str) -> float:
    """Parse a level of significance."""
    try:
        value = float(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from exc
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"alpha must lie between 0 and 1, got {text}")
    return value


def size(text: str) -> int:
    """Parse a number of bytes: 1000, 500M, 2GB."""
    digits = text.rstrip("kMGTB")
    unit = text[len(digits) :].removesuffix("B")
    try:
        value = float(digits) * SIZE_UNITS[unit]
    except (ValueError, KeyError) as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes, or 500M, 2G") from exc
    if value < 0:
        raise argparse.ArgumentTypeError(f"a size cannot be negative, got {text}")
    return int(value)


def add_fail_on(parser: argparse.ArgumentParser, kind: str, outcomes: tuple[str, ...]) -> None:
    """Add ``--fail-on``; :func:`exit_status` reads it.

    Args:
        parser: Of the command.
        kind: What an outcome of the command is called.
        outcomes: The outcomes there are.
    """
    parser.add_argument(
        "--fail-on",
        metavar=kind.upper(),
        action="append",
        default=[],
        type=_names(kind, outcomes),
        help=f"exit with 3 on this {kind} ({', '.join(outcomes)}; repeatable, or with commas)",
    )


def exit_status(options: argparse.Namespace, *outcomes: str) -> int:
    """Return 3 if one of the outcomes is named by ``--fail-on``, else 0."""
    named = {name for names in options.fail_on for name in names}
    return EXIT_NAMED if named.intersection(outcomes) else 0


def add_reading(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add what a command that computes comparisons needs to reach the models."""
    reading = parser.add_argument_group("reading")
    reading.add_argument("--token", help="token for gated and private models (default: HF_TOKEN or the saved login)")
    reading.add_argument("--cache-dir", type=Path, help="the Hub cache to use (default: HF_HUB_CACHE)")
    reading.add_argument("--max-bytes", type=size, metavar="SIZE", help="hard cap on what a comparison reads")
    reading.add_argument("--device", default="cpu", help="torch device for the matrix products, or auto (default cpu)")
    return reading


def print_plan(plan: ReadPlan) -> None:
    """Show the plan of a comparison on standard error, before the weights are read."""
    sys.stderr.write(f"{plan}\n")
    sys.stderr.flush()


def _names(kind: str, known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not a {kind}; choose from {', '.join(known)}")
        return names

    return parse
