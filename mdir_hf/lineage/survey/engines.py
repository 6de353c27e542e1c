"""Runs the work of a survey: here, in processes of this machine, or on a dask cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from mdir_hf.errors import InputError, WorkersLostError, one_line
from mdir_hf.installing import install_command

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

    from distributed import Client

RETRIES = 2
"""How often a dask cluster tries a task again whose worker died."""

RESERVE = 4
"""Tasks handed out beyond one for each worker, so that no worker waits for its next one. They are few, because the task
of a tile carries the rows of 16 models: 130 MB where models are 2048 wide."""

GPU = "GPU"
"""What a dask worker that has a GPU calls it: ``dask worker … --resources "GPU=1"``."""

GPUS = "CUDA_VISIBLE_DEVICES"

ASKED_EVERY_S = 1.0
"""Seconds after which the number of workers is asked for again, even if no task has ended: a cluster may grow."""

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Engine:
    """Runs the tasks of a survey.

    Attributes:
        executor: Takes the tasks. Its workers must have this package; they need no common disk.
        n_workers: Says how many tasks can run at a time now. Asked again and again while tasks are left.
    """

    executor: Executor
    n_workers: Callable[[], int]

    def run(
        self,
        work: Callable[..., T],
        tasks: Iterable[tuple[K, tuple[Any, ...]]],
        record: Callable[[T], None],
        give_up: Callable[[K, str], None],
    ) -> None:
        """Keep every worker busy until all tasks are done.

        Args:
            work: What a task calls.
            tasks: A key and the arguments of ``work`` for each task. A task is taken from here only when it is handed
                out, so that the arguments of all tasks are never in memory at once.
            record: Called here with what a task returned.
            give_up: Called here with the key of a task that failed, and why.

        Raises:
            WorkersLostError: If the executor takes no more tasks.
        """
        upcoming = iter(tasks)
        running: dict[Future[T], K] = {}
        try:
            while True:
                n_workers = max(1, self.n_workers())
                room = n_workers + min(n_workers, RESERVE) - len(running)
                for key, arguments in islice(upcoming, max(0, room)):
                    running[self.executor.submit(work, *arguments)] = key
                if not running:
                    return
                done, _ = wait(running, timeout=ASKED_EVERY_S, return_when=FIRST_COMPLETED)
                for future in done:
                    key = running.pop(future)
                    try:
                        outcome = future.result()
                    except (BrokenExecutor, CancelledError):  # nobody but a lost scheduler cancels a running task
                        raise
                    except Exception as exc:  # a worker's death is another exception in each kind of executor
                        give_up(key, f"its worker failed: {type(exc).__name__} {one_line(exc)[:200]}")
                        continue
                    record(outcome)
        except (BrokenExecutor, CancelledError) as exc:
            raise WorkersLostError(
                f"the workers are gone ({exc}); what was computed is kept: run the same survey again to go on"
            ) from exc
        finally:
            for future in running:
                future.cancel()


@contextmanager
def open_engine(
    *, workers: int | None = None, scheduler: str | None = None, device: str = "cpu"
) -> Iterator[Engine | None]:
    """Give an engine for :func:`~mdir_hf.lineage.survey.run.run_survey`, and close it afterwards.

    Args:
        workers: Processes on this machine, with one thread each; None or 1: no engine, everything here.
        scheduler: Address of a dask scheduler, ``tcp://host:8786``.
        device: Where the products are computed. With ``cuda`` each process of this machine has a GPU of its own as long
            as there are enough of them, and a dask worker that was started with ``--resources "GPU=1"`` has one task at
            a time, however many threads it has.

    Raises:
        InputError: If both are given, dask is not installed, or nobody answers at the address.
    """
    if scheduler is not None:
        if workers is not None:
            raise InputError("a scheduler has workers of its own; give either --scheduler or --workers")
        with _dask(scheduler, device) as engine:
            yield engine
    elif workers is None or workers == 1:
        yield None
    elif workers < 1:
        raise InputError(f"a survey needs at least one worker, got {workers}")
    else:
        # Spawned, not forked: torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        number = context.Value("i", 0) if device == "cuda" else None
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare, initargs=(number,)) as executor:
            yield Engine(executor, lambda: workers)


def _prepare(number: Synchronized[int] | None) -> None:
    """Give a process of a pool one thread and, where they are counted, the next of the GPUs that may be used."""
    import os
    import signal

    if number is not None:
        with number.get_lock():
            mine, number.value = number.value, number.value + 1
        visible = os.environ.get(GPUS) or ",".join(map(str, range(_n_gpus())))
        if visible:  # read by CUDA when it is first used, which it has not been in this process
            os.environ[GPUS] = visible.split(",")[mine % (visible.count(",") + 1)]

    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client, which then closes its workers


def _n_gpus() -> int:
    import torch

    return torch.cuda.device_count()


@contextmanager
def _dask(scheduler: str, device: str) -> Iterator[Engine]:
    try:
        from distributed import Client
    except ImportError as exc:
        raise InputError(f"a dask scheduler needs dask.distributed: {install_command('cluster')}") from exc
    try:
        client = Client(scheduler, timeout=10)
    except (OSError, ValueError, TimeoutError) as exc:
        raise InputError(
            f"no dask scheduler answers at {scheduler!r} ({exc}); start one with `dask scheduler`, and workers with "
            "`dask worker tcp://HOST:8786 --nworkers 4 --nthreads 1`"
        ) from exc
    # Not pure: dask would hash every argument, the rows of models too, to find tasks that are the same. None are.
    with client:
        needed = {GPU: 1} if device == "cuda" and _n_tasks(client, GPU) else {}
        with client.get_executor(retries=RETRIES, pure=False, resources=needed) as executor:
            yield Engine(executor, lambda: _n_tasks(client, GPU if needed else None))


def _n_tasks(client: Client, resource: str | None = None) -> int:
    """Ask a dask cluster how many tasks its workers run at a time: one for each thread, or for each of a resource."""
    try:
        if resource is None:
            return sum(client.nthreads().values())
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return int(sum(worker["resources"].get(resource, 0) for worker in workers))
    except Exception as exc:  # OSError while the scheduler is gone, others once the client has given up
        raise BrokenExecutor(f"the dask scheduler does not answer: {exc}") from exc
