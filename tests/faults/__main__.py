"""``python -m tests.faults [N] [PROGRAM…]``: every program ended at N points, and on disks that are too small."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.programs import machine
from tests.faults.property import Outcome, hold, hold_on_full_disk, small_disk

DISK_BYTES = 64 << 20


def main() -> int:
    """Run, and print one line for each program and fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("n_points", type=int, nargs="?", default=200)
    parser.add_argument("programs", nargs="*")
    asked = parser.parse_args()
    is_broken = False
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, machine(Path(folder, "machine")) as found:
        place = Path(folder)
        with small_disk(place / "disk", DISK_BYTES) as disk:
            for name in asked.programs or found.programs:
                began = time.monotonic()
                outcomes = {
                    "killed": hold(found, name, place / name / "killed", most=asked.n_points),
                    "disk full once": hold(found, name, place / name / "full", most=asked.n_points // 8, fault="full"),
                }
                if disk is not None:
                    outcomes["disk too small"] = hold_on_full_disk(
                        found, name, place / name / "small", most=asked.n_points // 8, disk=disk
                    )
                for fault, outcome in outcomes.items():
                    is_broken |= bool(outcome.broken)
                    say(name, fault, outcome)
                sys.stdout.write(f"{name}: {time.monotonic() - began:.0f} s\n")
                sys.stdout.flush()
    return 1 if is_broken else 0


def say(name: str, fault: str, outcome: Outcome) -> None:
    """Print what came of a program."""
    sys.stdout.write(
        f"{name}, {fault}: {outcome.n_faults} faults, spread over {outcome.n_points} points, ended it "
        f"{outcome.n_ended} times; {len(outcome.broken)} times something was not right\n"
    )
    sys.stdout.write("".join(f"  {words}\n" for words in outcome.broken[:10]))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
