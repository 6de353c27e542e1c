"""Where the work of a survey runs: here, in processes of this machine, or on a dask cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from mdir_hf.errors import InputError

RETRIES = 2
"""How often a dask cluster tries a task again whose worker died."""


@contextmanager
def open_executor(*, workers: int | None = None, scheduler: str | None = None) -> Iterator[Executor | None]:
    """Give an executor for :func:`~mdir_hf.survey.run.run_survey`, and close it afterwards.

    Args:
        workers: Processes on this machine, with one thread each; None or 1: no executor, everything here.
        scheduler: Address of a dask scheduler, ``tcp://host:8786``.

    Raises:
        InputError: If both are given, dask is not installed, or nobody answers at the address.
    """
    if scheduler is not None:
        if workers is not None:
            raise InputError("a scheduler has workers of its own; give either --scheduler or --workers")
        with _dask(scheduler) as executor:
            yield executor
    elif workers is None or workers == 1:
        yield None
    elif workers < 1:
        raise InputError(f"a survey needs at least one worker, got {workers}")
    else:
        # Spawned, not forked: torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as executor:
            yield executor


def _one_thread() -> None:
    import signal

    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client, which then closes its workers


@contextmanager
def _dask(scheduler: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError as exc:
        raise InputError("a dask scheduler needs dask.distributed: pip install 'mdir-hf[cluster]'") from exc
    try:
        client = Client(scheduler, timeout=10)
    except (OSError, ValueError, TimeoutError) as exc:
        raise InputError(
            f"no dask scheduler answers at {scheduler!r} ({exc}); start one with `dask scheduler`, and workers with "
            "`dask worker tcp://HOST:8786 --nworkers 4 --nthreads 1`"
        ) from exc
    with client, client.get_executor(retries=RETRIES) as executor:
        yield executor
