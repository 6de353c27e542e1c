"""Processor cores: how many this process may use, and which work gets more than one of them.

torch has one pool of threads, and the BLAS of numpy and scipy another. On small matrices both spend their time waiting
for each other: where another program wants the same cores, a product of 64 x 64 takes eight hundred times as long with
two threads as with one. So a comparison runs inside :func:`one_pool`, on one thread, and
:func:`all_cores` gives torch all of them for the length of a large product.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeVar

import torch
from threadpoolctl import LibController, OpenBLASController, get_cached_controller

from mdir_hf.errors import InputError

LARGE = 5e9
"""Floating-point operations from which work earns all cores: a tenth of a second of one core. Measured with two threads
on two cores, one of them shared with another program: an SVD of 1024 x 1024 was 1.6 (float32) to 2.2 times (float64) as
fast, one of 512 x 512 0.2 times in float64, a product of 64 x 64 took 16 ms in place of 0.02."""

T = TypeVar("T")


def is_one_of_several_ranks() -> bool:
    """Tell whether ``torch.distributed`` joins this process to others.

    Parameters may be sharded over the ranks then, and are gathered from all of them. Every rank has to ask for the same
    ones in the same order, so nothing is read in two threads at a time.
    """
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def usable_cores(root: Path = Path("/")) -> int:
    """Count the cores that this process may use: those of its affinity, or of the quota of its cgroup where fewer.

    Args:
        root: Where ``proc`` and ``sys`` are found.

    Returns:
        At least 1; a quota of one core and a half is one core. macOS has no affinity, and macOS and Windows have no
        cgroups: there it is the number of processors that the system reports.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota(root)
    return n_cores if quota is None else max(1, min(n_cores, int(quota)))


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """Return the processor quota of the cgroup of this process, in cores; None without one.

    Every group above counts, too: the smallest quota rules. Both versions of cgroups are read.

    Args:
        root: Where ``proc`` and ``sys`` are found.
    """
    quotas = [
        quota
        for folder, top in _cgroup_folders(root)
        for group in (folder, *folder.parents)
        if group.is_relative_to(top) and (quota := _quota_of(group)) is not None
    ]
    return min(quotas, default=None)


def _cgroup_folders(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the folder of this process's group, and the folder where its hierarchy is mounted."""
    groups: dict[str, str] = {}  # by controller, "" for version 2
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        controller = "cpu" if kind == "cgroup" and "cpu" in options.split(" ")[-1].split(",") else ""
        if kind not in ("cgroup", "cgroup2") or (kind == "cgroup" and not controller) or controller not in groups:
            continue
        mounted, at = mount.split(" ")[3:5]
        top, group = root / at.lstrip("/"), PurePosixPath(groups[controller])
        # Inside a container the path may be that of the host, of which only the container's own part is mounted.
        inside = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
        yield (top if ".." in inside.parts else top / inside), top


def _quota_of(group: Path) -> float | None:
    """Return the quota that one group sets, in cores."""
    try:
        limits = (group / "cpu.max").read_text().split()  # version 2
    except OSError:
        limits = [
            text for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") for text in _lines(group / name)[:1]
        ]  # version 1
    try:
        quota, period = (float(limit) for limit in limits)
    except ValueError:  # "max", or no such files
        return None
    return quota / period if quota > 0 and period > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


class _Here(threading.local):
    """What this thread may use inside :func:`one_pool`; None outside."""

    n_cores: int | None = None


class _OthersPools:
    """Thread pools that all threads of the process share: set to one thread while anybody is inside."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_inside = 0
        self.before: list[tuple[LibController, int]] = []

    def enter(self) -> None:
        with self.lock:
            if self.n_inside == 0:
                libraries = get_cached_controller().lib_controllers  # finding them takes milliseconds
                self.before = [(library, library.num_threads) for library in libraries if library.user_api == "blas"]
            self.n_inside += 1
            self._set([(library, 1) for library, _ in self.before])

    def leave(self) -> None:
        with self.lock:
            self.n_inside -= 1
            if self.n_inside == 0:
                self._set(self.before)

    @staticmethod
    def _set(threads: list[tuple[LibController, int]]) -> None:
        for library, n_threads in threads:
            library.set_num_threads(n_threads)
        # threadpoolctl lets only the thread that set a limit change it; here the last one to leave changes it back.
        OpenBLASController.clear_controlling_thread()


_here = _Here()
_others = _OthersPools()
_all_cores = threading.Lock()
_torch = threading.Lock()


@contextmanager
def one_pool() -> Iterator[None]:
    """Run what is inside on one thread, and leave everything as it was found, however it ends.

    torch's threads are those of this Python thread alone: others keep theirs. The BLAS of numpy and scipy has one pool
    for the whole process, which has one thread until the last one inside has left. What the caller had set, by
    ``OMP_NUM_THREADS`` or :func:`torch.set_num_threads`, is the most that :func:`all_cores` gives. Inside another one
    it does nothing. Costs less than a millisecond.
    """
    if _here.n_cores is not None:
        yield
        return
    with _torch:  # a new thread reads what torch gives to new threads, which is not to be another one's meanwhile
        before = torch.get_num_threads()
    _here.n_cores = min(before, usable_cores())
    _others.enter()
    try:
        _set_torch_threads(1)
        yield
    finally:
        _set_torch_threads(before)
        _others.leave()
        _here.n_cores = None


@contextmanager
def all_cores(operations: float, device: torch.device | str = "cpu") -> Iterator[None]:
    """Give torch all cores for a piece of work that is large enough for them, inside :func:`one_pool`.

    One thread of the process at a time has them; others wait, as they would for the cores. Does nothing outside of
    :func:`one_pool`, where the caller's own settings rule, nor on an accelerator.

    Args:
        operations: Floating-point operations of the work.
        device: Where it runs.
    """
    n_cores = _here.n_cores
    if n_cores is None or n_cores == 1 or operations < LARGE or torch.device(device).type != "cpu":
        yield
        return
    with _all_cores:
        _set_torch_threads(n_cores)
        _here.n_cores = 1  # what is nested has them already
        try:
            yield
        finally:
            _here.n_cores = n_cores
            _set_torch_threads(1)


def _set_torch_threads(n_threads: int) -> None:
    """Set torch's threads for this Python thread alone.

    ``torch.set_num_threads`` also sets what threads that start later will have, which only a new one can tell and set
    back. Costs a quarter of a millisecond.
    """
    if torch.get_num_threads() == n_threads:
        return
    with _torch:
        of_new_threads = _in_a_new_thread(torch.get_num_threads)
        torch.set_num_threads(n_threads)
        _in_a_new_thread(lambda: torch.set_num_threads(of_new_threads))


def _in_a_new_thread(call: Callable[[], T]) -> T:
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]


def available_device(device: str) -> str:
    """Return a torch device of this machine, or refuse.

    Args:
        device: Its name; ``auto``: a CUDA device where there is one, else the CPU.

    Raises:
        InputError: If this machine, or this torch, has no such device, or it has no float64.
    """
    if device == "auto":
        # Not every accelerator will do: the small factors are float64, which Apple's does not have.
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as exc:
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise InputError(
            f"device {device!r} cannot be used here ({reason}); choose cpu, auto, or a device of this machine"
        ) from exc
    return device
