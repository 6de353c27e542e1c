"""The property of every program: its files are valid after a fault, and the next run completes them."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.programs import Machine, Program, spread

FULL_DISK = "a full disk"


@dataclass
class Outcome:
    """Faults of one program and their outcome.

    Attributes:
        n_points: Points of the program.
        n_faults: Faults that were tried.
        n_ended: Faults that ended the program.
        broken: Descriptions of violations.
    """

    n_points: int = 0
    n_faults: int = 0
    n_ended: int = 0
    broken: list[str] = field(default_factory=list)


def hold(machine: Machine, name: str, place: Path, *, most: int, outcome: Outcome, fault: str = "kill") -> Outcome:
    """Kill a program, or fill its disk, at points spread over its run; run it again each time."""
    program = machine.programs[name]
    whole = _whole(machine, program, place / "whole", outcome, fault)
    points = spread(outcome.n_points, most)
    for at in random.Random(0).sample(points, len(points)):  # random, in case the run is cut short
        here = place / f"{at}"
        _fault(machine, program, here, whole, outcome, at=at, fault=fault)
        shutil.rmtree(here)
    return outcome


def hold_on_full_disk(machine: Machine, name: str, place: Path, *, most: int, disk: Path, outcome: Outcome) -> Outcome:
    """Run a program on a disk with room for part of its files, then again with enough room.

    Args:
        machine: The Hub and the nursery.
        name: Name of the program.
        place: A folder on another disk.
        most: Number of sizes to try, spread up to the size of the program's files.
        disk: An empty disk of some megabytes.
        outcome: Updated with the results.
    """
    program = machine.programs[name]
    whole = _whole(machine, program, place / "whole", outcome, "full")
    n_bytes = sum(path.stat().st_size for path in (place / "whole").rglob("*") if path.is_file())
    for room in spread(n_bytes + 65536, most):
        with _room_for(disk, room):
            statuses, _, said = machine.run(program, disk / "here")
            outcome.n_faults += 1
            outcome.n_ended += any(statuses)
            outcome.broken += [
                f"{FULL_DISK} with room for {room:,} bytes: status {status}, said {words[-300:]!r}"
                for status, words in zip(statuses, said, strict=True)
                if status not in (0, 1) or "Traceback" in words
            ]
            if not program.is_sound(disk / "here", whole):
                outcome.broken.append(f"{FULL_DISK} with room for {room:,} bytes: invalid files")
        _again(machine, program, disk / "here", whole, outcome, f"{FULL_DISK} with room for {room:,} bytes")
        shutil.rmtree(disk / "here")
    return outcome


def _whole(machine: Machine, program: Program, place: Path, outcome: Outcome, fault: str) -> Any:
    statuses, outcome.n_points, said = machine.run(program, place, fault=fault)
    assert not any(statuses), said
    return program.product(place)


def _fault(
    machine: Machine, program: Program, place: Path, whole: Any, outcome: Outcome, *, at: int, fault: str
) -> None:
    (status, *others), n_points, said = machine.run(program, place, at=at, fault=fault)
    while status == 0 and n_points < at:  # concurrent runs had cached data, so it has fewer points
        shutil.rmtree(place)
        at = n_points
        (status, *others), n_points, said = machine.run(program, place, at=at, fault=fault)
    where = f"{fault} at {at}"
    outcome.n_faults += 1
    outcome.n_ended += status != 0
    if fault == "kill" and status not in (-signal.SIGKILL, 0):
        outcome.broken.append(f"{where}: status {status}, said {said[0][-300:]!r}")
    if fault == "full" and (status not in (0, 1) or "Traceback" in said[0]):
        outcome.broken.append(f"{where}: status {status}, said {said[0][-300:]!r}")
    if any(others):
        outcome.broken.append(f"{where}: concurrent runs ended with {others}, said {said[1:]!r}")
    if not program.is_sound(place, whole):
        outcome.broken.append(f"{where}: invalid files")
    _again(machine, program, place, whole, outcome, where)


def _again(machine: Machine, program: Program, place: Path, whole: Any, outcome: Outcome, where: str) -> None:
    statuses, _, said = machine.run(program, place)
    if any(statuses):
        outcome.broken.append(f"again after {where}: status {statuses}, said {said!r}")
    elif program.product(place) != whole:
        outcome.broken.append(f"again after {where}: the product differs")


@contextmanager
def _room_for(disk: Path, n_bytes: int) -> Iterator[None]:
    """Fill a disk while the block runs, except for a number of bytes."""
    filling = disk / ".filling"
    with filling.open("wb") as file:
        file.write(bytes(max(0, shutil.disk_usage(disk).free - n_bytes)))
    try:
        yield
    finally:
        filling.unlink()


@contextmanager
def small_disk(place: Path, n_bytes: int) -> Iterator[Path | None]:
    """Mount a disk of this size in memory; yield None if this user may not."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
