"""The tasks of a survey, and the engines that run them.

Tasks are plain functions that return failures as results; an exception indicates a bug or a dead worker.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import compare_models, compare_samples
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError, MdirError, WorkersLostError, one_line
from mdir_hf.installing import require_extra
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, SampledModel, take_fingerprint
from mdir_hf.lineage.fingerprints.opening import Pin, open_model, pin_of
from mdir_hf.lineage.survey.results import Pair, PairResult
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading, open_both
from mdir_hf.processor import available_device
from mdir_hf.report import HomologyReport

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

    from distributed import Client


RETRIES = 2
"""Number of times that a dask cluster retries a task whose worker died."""

RESERVE = 4
"""Number of queued tasks beyond one per worker, so that no worker has to wait. It is small because the task for a tile
contains the rows of 16 models: 130 MB at width 2048."""

GPU = "GPU"
"""Resource name of dask workers with a GPU: ``dask worker … --resources "GPU=1"``."""

GPUS = "CUDA_VISIBLE_DEVICES"

ASKED_EVERY_S = 1.0
"""Interval in seconds for recounting workers while no task finishes, because a cluster may grow."""

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Engine:
    """Runs the tasks of a survey.

    Attributes:
        executor: Runs tasks. Its workers need this package, but not a shared disk.
        n_workers: Returns the number of tasks that can run concurrently.
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

        A task is a key and the arguments of ``work``. ``record`` is called with each result, and ``give_up`` with the
        key of each failed task and the reason.

        Raises:
            WorkersLostError: If the executor accepts no more tasks.
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
                finished, _ = wait(running, timeout=ASKED_EVERY_S, return_when=FIRST_COMPLETED)
                for future in finished:
                    key = running.pop(future)
                    try:
                        outcome = future.result()
                    except (
                        BrokenExecutor,
                        CancelledError,
                    ):  # only a lost scheduler cancels running tasks
                        raise
                    except Exception as exc:  # each kind of executor raises another exception when a worker dies
                        give_up(key, f"its worker failed: {type(exc).__name__} {one_line(exc)[:200]}")
                        continue
                    record(outcome)
        except (BrokenExecutor, CancelledError) as exc:
            raise WorkersLostError(
                f"the workers are gone ({exc}); finished results are kept: run the same survey again to go on"
            ) from exc
        finally:
            for future in running:
                future.cancel()


@contextmanager
def open_engine(
    *, workers: int | None = None, scheduler: str | None = None, device: str = "cpu"
) -> Iterator[Engine | None]:
    """Open an engine for :func:`~mdir_hf.lineage.survey.run.run_survey`, and close it afterwards.

    Yields None if ``workers`` is None or 1. ``scheduler`` is the address of a dask scheduler, ``tcp://host:8786``. On
    ``cuda``, each local process uses its own GPU if there are enough; a dask worker with ``--resources "GPU=1"`` runs
    one task at a time.

    Raises:
        InputError: If both workers and a scheduler are given, dask is missing, or the scheduler does not respond.
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
    import os
    import signal

    if number is not None:
        with number.get_lock():
            gpu_number, number.value = number.value, number.value + 1
        visible = os.environ.get(GPUS) or ",".join(map(str, range(_n_gpus())))
        if visible:  # CUDA reads this when it is first used, which has not happened in this process
            os.environ[GPUS] = visible.split(",")[gpu_number % (visible.count(",") + 1)]

    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client handles Ctrl-C and closes its workers


def _n_gpus() -> int:
    import torch

    return torch.cuda.device_count()


@contextmanager
def _dask(scheduler: str, device: str) -> Iterator[Engine]:
    require_extra("cluster", "distributed", purpose="a dask scheduler needs dask.distributed")
    from distributed import Client

    try:
        client = Client(scheduler, timeout=10)
    except (OSError, ValueError, TimeoutError) as exc:
        raise InputError(
            f"no dask scheduler answers at {scheduler!r} ({exc}); start one with `dask scheduler`, and workers with "
            "`dask worker tcp://HOST:8786 --nworkers 4 --nthreads 1`"
        ) from exc
    # Not pure: otherwise dask would hash every argument, including the rows of models, to find equal tasks.
    with client:
        needed = {GPU: 1} if device == "cuda" and _n_tasks(client, GPU) else {}
        with client.get_executor(retries=RETRIES, pure=False, resources=needed) as executor:
            yield Engine(executor, lambda: _n_tasks(client, GPU if needed else None))


def _n_tasks(client: Client, resource: str | None = None) -> int:
    try:
        if resource is None:
            return sum(client.nthreads().values())
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return int(sum(worker["resources"].get(resource, 0) for worker in workers))
    except Exception as exc:  # OSError if the scheduler is gone, other exceptions after the client has given up
        raise BrokenExecutor(f"the dask scheduler does not answer: {exc}") from exc


def compare_fingerprints(
    reference: Fingerprint,
    candidate: Fingerprint,
    *,
    alpha: float = 1e-10,
    seed: int = 0,
    device: str = "cpu",
    neuron_seed: int | None = None,
) -> HomologyReport:
    """Compare two fingerprints by their stored neurons and, if these do not match, by their stored rows.

    ``neuron_seed`` must be drawn after both models have been opened; if it is None, the neurons cannot produce a
    ``homologous`` verdict.
    """
    return compare_samples(
        SampledModel(reference),
        SampledModel(candidate),
        (reference.neurons, candidate.neurons),
        Settings(alpha=alpha, seed=seed, device=device),
        Watch(IoLedger(), Listeners(progress=False)),
        neuron_seed=neuron_seed,
    )


@dataclass(frozen=True)
class Taken:
    """The outcome of reading a model; ``fingerprint`` is None if it failed."""

    name: str
    fingerprint: Fingerprint | None
    error: str | None
    bytes_read: int
    pin: Pin | None = None


def take(
    name: str,
    tokens: Sequence[bytes],
    reading: Reading,
    pin: Pin | None = None,
    neuron_seed: int | None = None,
    *,
    ledger: IoLedger | None = None,
) -> Taken:
    """Open a model at its pin, and read the rows and neurons in the sample.

    If ``neuron_seed`` is None, reads the fixed set of neurons that indexes use.
    """
    ledger = ledger or IoLedger()
    n_before = ledger.bytes_read
    try:
        model = open_model(name, reading, ledger, pin)
        fingerprint = take_fingerprint(model, tokens, neuron_seed=neuron_seed, needs_tokens=False)
        return Taken(name, fingerprint, None, ledger.bytes_read - n_before, pin_of(name, model) if pin is None else pin)
    except (MdirError, OSError, MemoryError) as exc:
        return Taken(name, None, one_line(exc), ledger.bytes_read - n_before)


def compare_tile(
    fingerprints: Mapping[str, Fingerprint],
    pairs: Sequence[Pair],
    alpha: float,
    seed: int,
    device: str = "cpu",
    neuron_seed: int | None = None,
) -> list[PairResult]:
    """Compare some pairs of fingerprints; the first of each pair is the reference.

    Raises:
        InputError: If the device is not available.
    """
    device = available_device(device)
    results = []
    for reference, candidate in pairs:
        try:
            first, second = fingerprints[reference], fingerprints[candidate]
            report = compare_fingerprints(first, second, alpha=alpha, seed=seed, device=device, neuron_seed=neuron_seed)
            results.append(PairResult.of(reference, candidate, report))
        except (MdirError, ArithmeticError, RuntimeError, ValueError, MemoryError) as exc:
            results.append(PairResult(reference, candidate, None, error=one_line(exc)))
    return results


def compare_with_layers(
    sample_result: PairResult,
    pins: Mapping[str, Pin],
    settings: Settings,
    reading: Reading,
    ledger: IoLedger,
    watch: Watch,
) -> PairResult:
    """Compare two models in full.

    ``watch.listening()`` must be open. If the comparison fails, returns ``sample_result`` with the reason
    added.
    """
    pair = sample_result.reference, sample_result.candidate
    first, second = (NamedModel(pins[name].reference if name in pins else name) for name in pair)
    try:
        models = open_both(first, second, reading, ledger)
        return PairResult.of(*pair, compare_models(*models, settings, watch), layers_compared=True)
    except (MdirError, OSError, ArithmeticError, RuntimeError, ValueError, MemoryError) as exc:
        return replace(sample_result, layers_error=one_line(exc))
