import threading
import time

import pytest

from mdir_hf.background import in_order


def test_results_come_in_order_for_any_durations():
    def work(task, cancelled):
        time.sleep(0.02 if task % 4 == 0 else 0)
        return task * task

    assert list(in_order(range(20), work, n_in_flight=4, name="t")) == [task * task for task in range(20)]


def test_the_first_failure_is_raised_at_once():
    def work(task, cancelled):
        if task == 1:
            raise ValueError("task 1 failed")
        if not cancelled.wait(10):
            raise AssertionError("was not cancelled")
        raise OSError("cancelled")

    begun = time.monotonic()
    with pytest.raises(ValueError, match="task 1 failed"):
        list(in_order(range(4), work, n_in_flight=4, name="t"))
    assert time.monotonic() - begun < 5


def test_nothing_new_begins_after_a_failure():
    begun = []

    def work(task, cancelled):
        begun.append(task)
        raise ValueError(f"task {task}")

    with pytest.raises(ValueError, match="task"):
        list(in_order(range(1000), work, n_in_flight=4, name="t"))
    assert len(begun) <= 4


def test_leaving_early_cancels_what_is_in_flight():
    stopped = threading.Event()

    def work(task, cancelled):
        if task > 0:
            cancelled.wait(10)
            stopped.set()
        return task

    results = in_order(range(100), work, n_in_flight=3, name="t")
    assert next(results) == 0
    results.close()
    assert stopped.wait(5)


def test_one_in_flight_needs_no_thread():
    used = list(in_order(range(3), lambda task, cancelled: threading.current_thread(), n_in_flight=1, name="t"))
    assert used == [threading.main_thread()] * 3


def test_an_interrupt_in_the_caller_does_not_wait_for_stuck_work():
    release = threading.Event()

    def work(task, cancelled):
        if task:
            release.wait(20)
        return task

    results = in_order(range(8), work, n_in_flight=4, name="t")
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        for _ in results:
            raise KeyboardInterrupt
    results.close()
    assert time.monotonic() - begun < 5
    release.set()
