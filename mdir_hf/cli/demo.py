"""``mdir-hf demo``."""

from __future__ import annotations

import argparse
from pathlib import Path

from mdir_hf.cli import arguments

DEMO_FOLDER = Path("demo-out")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demo`` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="build a small lineage, serve it locally like the Hub, and compare it",
        description="Build a small lineage of models, serve it over loopback like the Hub, and compare its members "
        "with the real client. Needs no network; needs mdir-hf[demo].",
    )
    arguments.add_output(parser, "output folder (default demo-out)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the demo and return the exit status."""
    from mdir_hf.demo.show import run_demo

    return run_demo(options.output or DEMO_FOLDER)
