"""Run work in background threads, and wait for results so that Ctrl-C works."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
_Job = tuple["Future[R]", T]


def in_order(
    tasks: Sequence[T], work: Callable[[T, threading.Event], R], *, n_in_flight: int, name: str
) -> Iterator[R]:
    """Yield the result of ``work(task, cancelled)`` for each task, in order, with at most ``n_in_flight`` pending.

    ``work`` should stop when ``cancelled`` is set. It runs in daemon threads if more than one task can be pending. A
    failure or an early exit cancels the remaining tasks.
    """
    n_threads = min(n_in_flight, len(tasks))
    if n_threads <= 1:
        never = threading.Event()
        for task in tasks:
            yield work(task, never)
        return
    jobs: queue.SimpleQueue[_Job[R, T] | None] = queue.SimpleQueue()
    cancelled = threading.Event()
    first_failure: list[BaseException] = []

    def worker() -> None:
        while (job := jobs.get()) is not None:
            future, task = job
            if cancelled.is_set():
                future.cancel()
                continue
            try:
                future.set_result(work(task, cancelled))
            except BaseException as exc:  # raised in the consumer's thread
                if not cancelled.is_set():
                    first_failure.append(exc)
                    cancelled.set()
                future.set_exception(exc)
            del future, task, job  # do not keep the result alive while waiting

    for number in range(n_threads):
        threading.Thread(target=worker, name=f"{name}-{number}", daemon=True).start()
    pending: deque[Future[R]] = deque()
    try:
        for task in tasks:
            future: Future[R] = Future()
            pending.append(future)
            jobs.put((future, task))
            if len(pending) >= n_in_flight:
                yield _next_result(pending, first_failure)
        while pending:
            yield _next_result(pending, first_failure)
    finally:
        cancelled.set()
        for _ in range(n_threads):
            jobs.put(None)


def _next_result(pending: deque[Future[R]], first_failure: list[BaseException]) -> R:
    future = pending.popleft()
    _wait_for(future)
    if first_failure:
        raise first_failure[0]
    return future.result()


def run_beside(work: Callable[[], R], *, name: str, at_once: bool = False) -> Future[R]:
    """Run ``work`` in a daemon thread, or in the calling thread if ``at_once`` is true."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:  # raised by result_of
            future.set_exception(exc)

    if at_once:
        run()
    else:
        threading.Thread(target=run, name=name, daemon=True).start()
    return future


def result_of(future: Future[R]) -> R:
    """Wait for a future, and return its result or raise its exception."""
    _wait_for(future)
    return future.result()


def _wait_for(future: Future[R]) -> None:
    while not wait((future,), timeout=0.5).done:
        pass  # on Windows a wait without a timeout ignores Ctrl-C
