"""The tasks of a survey, and the executors that run them.

Tasks are plain functions that return failures as results; an exception indicates a bug or a dead worker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
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

import torch

from mdir_hf.comparison.neurons import count_neurons_of_pairs
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import compare_models, report_on_counts
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import InputError, MdirError, WorkersLostError, one_line
from mdir_hf.installing import require_extra
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, SampledModel, take_fingerprint
from mdir_hf.lineage.fingerprints.opening import Pin, open_model, pin_of
from mdir_hf.lineage.survey.results import Pair, PairResult
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading, open_both
from mdir_hf.processor import available_device, one_pool

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

MOST_IN_FLIGHT = 32
"""Number of tasks that an executor has at a time. It is small because a task may hold the neurons of many models."""

PAIRS_AT_ONCE = 32
"""Number of pairs whose neurons are compared in one task."""

RETRIES = 2
"""Number of times that a dask cluster retries a task whose worker died."""

GPUS = "CUDA_VISIBLE_DEVICES"

FAILURES = (MdirError, OSError, ArithmeticError, RuntimeError, ValueError, MemoryError)
"""Exceptions that cost one model or one pair, and not the survey."""

K = TypeVar("K")
T = TypeVar("T")


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
    """Open a model at its pin, and read the rows, neurons and heads in the sample."""
    ledger = ledger or IoLedger()
    n_before = ledger.bytes_read
    try:
        model = open_model(name, reading, ledger, pin)
        fingerprint = take_fingerprint(model, tokens, neuron_seed=neuron_seed, needs_tokens=False, with_heads=True)
        return Taken(name, fingerprint, None, ledger.bytes_read - n_before, pin_of(name, model) if pin is None else pin)
    except (MdirError, OSError, MemoryError) as exc:
        return Taken(name, None, one_line(exc), ledger.bytes_read - n_before)


def compare_by_number(
    fingerprints: Mapping[str, Fingerprint],
    pairs: Sequence[Pair],
    alpha: float,
    seed: int,
    device: str = "cpu",
    neuron_seed: int | None = None,
) -> list[PairResult]:
    """Compare the files and the sampled neurons of pairs of models; the first of each pair is the reference.

    ``neuron_seed`` must be drawn after the models have been opened; if it is None, no pair is ``homologous``, except
    for equal files. Pairs that cannot be compared by number, and have no equal files, are left out.

    Raises:
        InputError: If the device is not available.
    """
    settings = Settings(alpha=alpha, seed=seed, device=available_device(device))
    models = {name: SampledModel(fingerprint) for name, fingerprint in fingerprints.items()}
    try:
        return _compare_block(models, fingerprints, pairs, settings, neuron_seed)
    except FAILURES as exc:
        if len(pairs) == 1:
            return [PairResult(*pairs[0], None, error=one_line(exc))]
    alone = (compare_by_number(fingerprints, [pair], alpha, seed, device, neuron_seed) for pair in pairs)
    return [result for results in alone for result in results]


def _compare_block(
    models: Mapping[str, SampledModel],
    fingerprints: Mapping[str, Fingerprint],
    pairs: Sequence[Pair],
    settings: Settings,
    neuron_seed: int | None,
) -> list[PairResult]:
    sampled = [(fingerprints[first].neurons, fingerprints[second].neurons) for first, second in pairs]
    known = [at for at, (first, second) in enumerate(sampled) if first is not None and second is not None]
    with one_pool():
        counts = dict(
            zip(
                known,
                count_neurons_of_pairs(
                    [sampled[at] for at in known],  # type: ignore[misc]
                    alpha=settings.alpha,
                    device=settings.device,
                ),
                strict=True,
            )
        )
    results = []
    for at, (reference, candidate) in enumerate(pairs):
        report = report_on_counts(
            models[reference],
            models[candidate],
            counts.get(at),
            settings,
            Watch(IoLedger(), Listeners(progress=False)),
            neuron_seed=neuron_seed,
        )
        if counts.get(at) is not None or report.settled_by is not None:
            results.append(PairResult.of(reference, candidate, report))
    return results


def of_neurons(fingerprint: Fingerprint) -> Fingerprint:
    """Return a copy with neurons only, as :func:`compare_by_number` needs it."""
    return replace(fingerprint, tokens=(), rows=fingerprint.rows[:0], heads=None)


def compare_in_full(
    pair: Pair,
    pins: Mapping[str, Pin],
    settings: Settings,
    reading: Reading,
    watch: Watch | None = None,
    ledger: IoLedger | None = None,
) -> PairResult:
    """Compare two models in full; return a result without a verdict, with the reason, if this fails.

    A ``watch`` of the ``ledger``, whose ``listening()`` must be open, follows the comparison.
    """
    ledger = ledger or IoLedger()
    first, second = (NamedModel(pins[name].reference if name in pins else name) for name in pair)
    try:
        models = open_both(first, second, reading, ledger)
        report = compare_models(*models, settings, watch or Watch(ledger, Listeners(progress=False)))
        return PairResult.of(*pair, report, layers_compared=True)
    except FAILURES as exc:
        return PairResult(*pair, None, layers_error=one_line(exc))


def run_tasks(
    executor: Executor | None,
    work: Callable[..., T],
    tasks: Iterable[tuple[K, tuple[Any, ...]]],
    record: Callable[[T], None],
    give_up: Callable[[K, str], None],
) -> None:
    """Run tasks, in order and here if there is no executor.

    A task is a key and the arguments of ``work``. ``record`` is called with each result, and ``give_up`` with the key
    of each task whose worker failed, and the reason.

    Raises:
        WorkersLostError: If the executor accepts no more tasks.
    """
    if executor is None:
        for _, arguments in tasks:
            record(work(*arguments))
        return
    upcoming = iter(tasks)
    running: dict[Future[T], K] = {}
    try:
        while True:
            for key, arguments in islice(upcoming, MOST_IN_FLIGHT - len(running)):
                running[executor.submit(work, *arguments)] = key
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key = running.pop(future)
                try:
                    outcome = future.result()
                except (BrokenExecutor, CancelledError):  # only a lost scheduler cancels running tasks
                    raise
                except MdirError:
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
def open_executor(
    *, workers: int | None = None, scheduler: str | None = None, device: str = "cpu"
) -> Iterator[Executor | None]:
    """Open an executor for a survey, and close it afterwards.

    Yields None if ``workers`` is None or 1. ``scheduler`` is the address of a dask scheduler, ``tcp://host:8786``. On
    ``cuda``, each local process uses its own GPU if there are enough, and workers of a cluster need
    ``--resources "GPU=1"``.

    Raises:
        InputError: If both workers and a scheduler are given, dask is missing, or the scheduler does not respond.
    """
    if scheduler is not None:
        if workers is not None:
            raise InputError("a scheduler has workers of its own; give either --scheduler or --workers")
        with _dask(scheduler, device) as executor:
            yield executor
    elif workers is None or workers == 1:
        yield None
    elif workers < 1:
        raise InputError(f"a survey needs at least one worker, got {workers}")
    else:
        # Spawned, not forked: torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        number = context.Value("i", 0) if device == "cuda" else None
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare, initargs=(number,)) as executor:
            yield executor


def _prepare(number: Synchronized[int] | None) -> None:
    if number is not None:
        with number.get_lock():
            gpu_number, number.value = number.value, number.value + 1
        visible = os.environ.get(GPUS) or ",".join(map(str, range(torch.cuda.device_count())))
        if visible:  # CUDA reads this when it is first used, which has not happened in this process
            os.environ[GPUS] = visible.split(",")[gpu_number % (visible.count(",") + 1)]
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client handles Ctrl-C and closes its workers


@contextmanager
def _dask(scheduler: str, device: str) -> Iterator[Executor]:
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
    resources = {"GPU": 1} if device == "cuda" else {}
    with client, client.get_executor(retries=RETRIES, pure=False, resources=resources) as executor:
        yield executor
