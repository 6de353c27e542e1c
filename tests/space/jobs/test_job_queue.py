import threading

import pytest

from mdir_space.jobs.job_queue import JobQueue
from mdir_space.jobs.question import RefusedError


def test_a_limited_number_run_and_the_others_wait_in_order():
    queue = JobQueue(2, 10, None)
    entries = [queue.enter(f"visitor {number}") for number in range(5)]

    assert [entry.n_ahead for entry in entries] == [0, 0, 1, 2, 3]


def test_leaving_lets_the_next_one_run():
    queue = JobQueue(1, 10, None)
    first, second, third = (queue.enter(name) for name in "abc")

    first.leave()
    first.leave()

    assert (second.n_ahead, third.n_ahead, len(queue)) == (0, 1, 2)


def test_a_waiting_entry_may_leave():
    queue = JobQueue(1, 10, None)
    first, second, third = (queue.enter(name) for name in "abc")

    second.leave()

    assert (first.n_ahead, third.n_ahead) == (0, 1)


def test_a_full_queue_refuses():
    queue = JobQueue(2, 3, None)
    entries = [queue.enter(f"visitor {number}") for number in range(5)]

    with pytest.raises(RefusedError, match="queue is full: 3 comparisons") as caught:
        queue.enter("late")
    assert caught.value.runs_locally

    entries[0].leave()
    assert queue.enter("late").n_ahead == 3


def test_one_visitor_does_not_fill_the_queue():
    queue = JobQueue(1, 50, 2)
    mine = [queue.enter("greedy"), queue.enter("greedy")]

    with pytest.raises(RefusedError, match="2 comparisons of yours"):
        queue.enter("greedy")
    assert queue.enter("somebody else").n_ahead == 1

    mine[0].leave()
    assert queue.enter("greedy").n_ahead == 2


def test_a_visitor_with_a_job_comes_after_those_without():
    queue = JobQueue(1, 50, 4)
    greedy = [queue.enter("greedy") for _ in range(4)]
    others = [queue.enter(name) for name in "ab"]

    assert [entry.n_ahead for entry in greedy] == [0, 3, 4, 5]
    assert [entry.n_ahead for entry in others] == [1, 2]

    greedy[0].leave()  # now the longest-waiting visitor ranks equal with the others
    assert [entry.n_ahead for entry in (*greedy[1:], *others)] == [0, 3, 4, 1, 2]


def test_no_visitor_takes_the_last_running_place():
    queue = JobQueue(2, 50, 4)
    greedy = [queue.enter("greedy") for _ in range(3)]
    assert [entry.n_ahead for entry in greedy] == [0, 1, 2]

    others = [queue.enter(name) for name in "ab"]
    assert [entry.n_ahead for entry in others] == [0, 1]

    greedy[0].leave()
    assert [entry.n_ahead for entry in (*greedy[1:], *others)] == [0, 2, 0, 1]


def test_a_local_user_may_take_every_place():
    queue = JobQueue(2, 50, None)
    assert [queue.enter("me").n_ahead for _ in range(3)] == [0, 0, 1]


def test_concurrent_threads_get_separate_places():
    queue = JobQueue(1, 100, None)
    entries = []
    threads = [threading.Thread(target=lambda: entries.append(queue.enter("x"))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(entry.n_ahead for entry in entries) == list(range(50))
