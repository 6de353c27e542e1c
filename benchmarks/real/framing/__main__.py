"""Build, judge and list framed models."""

from __future__ import annotations

import argparse

import torch

from benchmarks.real.framing.cases import Case, built, cases
from benchmarks.real.framing.judge import RESULTS, judged, write
from benchmarks.zoo.run import read_lines


def main() -> None:
    """Run one part for some cases, or for all."""
    from transformers.utils import logging

    parser = argparse.ArgumentParser(prog="python -m benchmarks.real.framing", description=__doc__)
    parser.add_argument("part", choices=("build", "judge", "list"))
    parser.add_argument("names", nargs="*", help="parts of names of cases; all cases by default")
    parser.add_argument("--again", action="store_true", help="also judge cases that have a line in the results")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    known = {row["name"] for row in read_lines(RESULTS)}
    for name, case in cases().items():
        if arguments.names and not any(part in name for part in arguments.names):
            continue
        if arguments.part == "list":
            print(line_of(case))
        elif arguments.part == "build":
            print(built(case), flush=True)
        elif arguments.again or name not in known:
            row = judged(case)
            write(row)
            print(f"{name}: {dict(row['verdicts'])}, {row['most_certain']} of {row['tested']} certain", flush=True)


def line_of(case: Case) -> str:
    """Format a line of the list of framed models."""
    expected = "a relative" if case.is_related else "a stranger"
    return f"| {case.name} | {case.victim} | {case.stranger or 'trained'} | {case.done} | {case.copied} | {expected} |"


if __name__ == "__main__":
    main()
