"""``python -m tests.faults [N] [PROGRAM…]``: kill programs at N points, and run them on small disks."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.counted import store_counts
from tests.faults.programs import machine
from tests.faults.property import Outcome, hold, hold_on_full_disk, small_disk

DISK_BYTES = 64 << 20


def main() -> int:
    """Run the programs, and print one line for each program and fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("n_points", type=int, nargs="?", default=200)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--results", type=Path, metavar="FILE", help="add the counts to this file")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs the cleanup of disks and processes
    outcomes: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, machine(Path(folder, "machine")) as tested:
        place = Path(folder)
        with small_disk(place / "disk", DISK_BYTES) as disk:
            for name in asked.programs or tested.programs:
                few = asked.n_points // 8
                with told(name, "killed") as outcome:
                    hold(tested, name, place / name / "killed", most=asked.n_points, outcome=outcome)
                outcomes.setdefault("programs killed while they write", []).append(outcome)
                with told(name, "disk full once") as outcome:
                    hold(tested, name, place / name / "full", most=few, fault="full", outcome=outcome)
                outcomes.setdefault("writes refused by a full disk", []).append(outcome)
                if disk is not None:
                    with told(name, "disk too small") as outcome:
                        hold_on_full_disk(tested, name, place / name / "small", most=few, disk=disk, outcome=outcome)
                    outcomes.setdefault("programs on a disk that is too small", []).append(outcome)
    rows = [
        {
            "what": what,
            "tried": sum(outcome.n_faults for outcome in found),
            "wrong": sum(len(outcome.broken) for outcome in found),
            "command": f"python -m tests.faults {asked.n_points}",
        }
        for what, found in outcomes.items()
    ]
    if asked.results is not None:
        store_counts(asked.results, rows)
    return 1 if any(row["wrong"] for row in rows) else 0


@contextmanager
def told(name: str, fault: str) -> Iterator[Outcome]:
    """Print the outcome of a program, even if the run is interrupted."""
    outcome, began = Outcome(), time.monotonic()
    try:
        yield outcome
    finally:
        sys.stdout.write(
            f"{name}, {fault}: {outcome.n_faults} faults, spread over {outcome.n_points} points, ended it "
            f"{outcome.n_ended} times; {len(outcome.broken)} violations; "
            f"{time.monotonic() - began:.0f} s\n"
        )
        sys.stdout.write("".join(f"  {words}\n" for words in outcome.broken[:10]))
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
