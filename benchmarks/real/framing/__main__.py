"""Build, judge and list framed models."""

from __future__ import annotations

import argparse

import torch

from benchmarks.real.framing.cases import Case, built, cases
from benchmarks.real.framing.judge import LEVELS, RESULTS, judged, write
from benchmarks.zoo.run import read_lines


def main() -> None:
    """Run one part for some cases, or for all."""
    from transformers.utils import logging

    parser = argparse.ArgumentParser(prog="python -m benchmarks.real.framing", description=__doc__)
    parser.add_argument("part", choices=("build", "judge", "list"))
    parser.add_argument("names", nargs="*", help="parts of names of cases; all cases by default")
    parser.add_argument("--without", action="append", default=[], help="leave out cases with this text in their name")
    parser.add_argument("--level", action="append", choices=LEVELS, help="level of the comparisons; both by default")
    parser.add_argument("--again", action="store_true", help="also judge cases that have a line in the results")
    parser.add_argument(
        "--verdicts", action="store_true", help="judge all cases again, but keep known counts and levels"
    )
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    known = {row["name"]: row for row in read_lines(RESULTS)}
    for case in _chosen(arguments.names, arguments.without):
        if arguments.part == "list":
            print(line_of(case))
        elif arguments.part == "build":
            print(built(case), flush=True)
        elif arguments.again or arguments.verdicts or case.name not in known:
            row = judged(
                case,
                levels=tuple(arguments.level or LEVELS),
                known=known.get(case.name) if arguments.verdicts else None,
            )
            write(row)
            verdicts = " ".join(
                f"{level} {row[level]['verdict']} {row[level]['log10_p']}" for level in LEVELS if level in row
            )
            print(f"{case.name}: {row['counts']['largest']} {verdicts}", flush=True)


def line_of(case: Case) -> str:
    """Format a line of the list of framed models."""
    expected = "a relative" if case.is_related else "must not be homologous"
    return f"| {case.name} | {case.victim} | {case.stranger or 'trained'} | {case.done} | {case.copied} | {expected} |"


def _chosen(parts: list[str], without: list[str]) -> list[Case]:
    return [
        case
        for name, case in cases().items()
        if (not parts or any(part in name for part in parts)) and not any(part in name for part in without)
    ]


if __name__ == "__main__":
    main()
