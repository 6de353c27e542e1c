"""Decide how many processor cores to use.

On busy cores, a 64 x 64 product takes eight hundred times as long with two threads as with one. A comparison therefore
runs on one thread, inside :func:`one_pool`, and :func:`all_cores` gives torch all cores during large products.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from threadpoolctl import LibController, OpenBLASController, get_cached_controller

from mdir_hf.errors import InputError

LARGE = 5e9
"""Minimum number of floating-point operations for using all cores; one core takes a tenth of a second. On two partly
busy cores, two threads made a 1024 x 1024 SVD 1.6 to 2.2 times as fast, but a 512 x 512 SVD five times slower."""

T = TypeVar("T")


def is_one_of_several_ranks() -> bool:
    """Return whether this process is one of several ranks of ``torch.distributed``.

    All ranks must gather the same parameters in the same order, so a rank must not read in several threads.
    """
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def value_of_first_rank(value: int) -> int:
    """Return the value that the first rank passes. All ranks must call this at the same point."""
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores, at least 1, that this process may use under its CPU affinity and cgroup quota.

    ``root`` contains ``sys``.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota(root)
    return n_cores if quota is None else max(1, min(n_cores, int(quota)))


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU quota, in cores, of the container that this process runs in; None if unlimited.

    A container sees its own control group as the root of the hierarchy (cgroup v2 or v1).
    """
    group = root / "sys/fs/cgroup"
    version_1 = (group / f"cpu/cpu.cfs_{name}_us" for name in ("quota", "period"))
    limits = _words(group / "cpu.max") or [word for path in version_1 for word in _words(path)]
    try:
        quota, period = map(float, limits)
    except ValueError:  # "max", or no such files
        return None
    return quota / period if quota > 0 and period > 0 else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


class _Here(threading.local):
    """Number of cores available to this thread inside :func:`one_pool`; None outside it."""

    n_cores: int | None = None


_here = _Here()
_blas = threading.Lock()
_blas_before: list[list[tuple[LibController, int]]] = []
"""One entry per running :func:`one_pool` block, each with the BLAS libraries' thread counts before the first block."""
_all_cores = threading.Lock()
_torch = threading.Lock()


@contextmanager
def one_pool() -> Iterator[None]:
    """Run the block on one thread, and restore all settings afterwards.

    torch is limited in this Python thread only, but BLAS in the whole process until the last block ends.
    :func:`all_cores` uses at most as many threads as torch was set to before. Nested blocks have no effect.
    """
    if _here.n_cores is not None:
        yield
        return
    with _torch:  # new threads inherit a process-wide setting, which _set_torch_threads changes briefly
        before = torch.get_num_threads()
    _here.n_cores = min(before, usable_cores())
    try:
        with _blas_on_one_thread():
            try:
                _set_torch_threads(1)
                yield
            finally:
                _set_torch_threads(before)
    finally:
        _here.n_cores = None


@contextmanager
def _blas_on_one_thread() -> Iterator[None]:
    """Limit the process-wide BLAS pools to one thread until the last block ends."""
    with _blas:
        if _blas_before:
            before = _blas_before[0]
        else:
            libraries = get_cached_controller().lib_controllers  # a lookup takes milliseconds
            before = [(library, library.num_threads) for library in libraries if library.user_api == "blas"]
        _blas_before.append(before)
        _set_blas_threads([(library, 1) for library, _ in before])
    try:
        yield
    finally:
        with _blas:
            _blas_before.pop()
            if not _blas_before:
                _set_blas_threads(before)


def _set_blas_threads(threads: list[tuple[LibController, int]]) -> None:
    for library, n_threads in threads:
        library.set_num_threads(n_threads)
    # threadpoolctl lets only the thread that set a limit change it, but here the last thread to leave restores it.
    OpenBLASController.clear_controlling_thread()


@contextmanager
def all_cores(operations: float, device: torch.device | str = "cpu") -> Iterator[None]:
    """Give torch all cores during the block if the work takes many floating-point ``operations``.

    Only one thread gets them at a time. This has no effect outside :func:`one_pool` or on an accelerator.
    """
    n_cores = _here.n_cores
    if n_cores is None or n_cores == 1 or operations < LARGE or torch.device(device).type != "cpu":
        yield
        return
    with _all_cores:
        _set_torch_threads(n_cores)
        _here.n_cores = 1  # nested blocks already have all cores
        try:
            yield
        finally:
            _here.n_cores = n_cores
            _set_torch_threads(1)


def _set_torch_threads(n_threads: int) -> None:
    """Set torch's thread count for this Python thread only."""
    if torch.get_num_threads() == n_threads:
        return
    with _torch:
        default_of_new_threads = _in_a_new_thread(torch.get_num_threads)
        torch.set_num_threads(n_threads)
        _in_a_new_thread(lambda: torch.set_num_threads(default_of_new_threads))


def _in_a_new_thread(call: Callable[[], T]) -> T:
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]


def available_device(device: str) -> str:
    """Return ``device`` if it is available; ``auto`` selects a CUDA device if there is one, else the CPU.

    Raises:
        InputError: If the device is unavailable or does not support float64.
    """
    if device == "auto":
        # Small factors are float64, which Apple's accelerator does not support.
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as exc:
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise InputError(
            f"device {device!r} cannot be used here ({reason}); choose cpu, auto, or a device of this machine"
        ) from exc
    return device
