import threading

import pytest

from mdir_space.question import RefusedError
from mdir_space.waiting_room import WaitingRoom


def test_so_many_run_at_a_time_and_the_others_wait_in_order():
    room = WaitingRoom(2, 10, None)
    tickets = [room.enter(f"visitor {number}") for number in range(5)]

    assert [ticket.n_ahead for ticket in tickets] == [0, 0, 1, 2, 3]


def test_whoever_leaves_lets_the_next_one_run_and_only_once():
    room = WaitingRoom(1, 10, None)
    first, second, third = (room.enter(name) for name in "abc")

    first.leave()
    first.leave()

    assert (second.n_ahead, third.n_ahead, len(room)) == (0, 1, 2)


def test_somebody_who_waits_may_leave():
    room = WaitingRoom(1, 10, None)
    first, second, third = (room.enter(name) for name in "abc")

    second.leave()

    assert (first.n_ahead, third.n_ahead) == (0, 1)


def test_a_full_room_takes_nobody_and_says_so():
    room = WaitingRoom(2, 3, None)
    tickets = [room.enter(f"visitor {number}") for number in range(5)]

    with pytest.raises(RefusedError, match="queue is full: 3 comparisons") as caught:
        room.enter("late")
    assert caught.value.runs_locally

    tickets[0].leave()
    assert room.enter("late").n_ahead == 3


def test_one_visitor_does_not_fill_the_room():
    room = WaitingRoom(1, 50, 2)
    mine = [room.enter("greedy"), room.enter("greedy")]

    with pytest.raises(RefusedError, match="2 comparisons of yours"):
        room.enter("greedy")
    assert room.enter("somebody else").n_ahead == 1

    mine[0].leave()
    assert room.enter("greedy").n_ahead == 2


def test_whoever_has_a_place_comes_after_those_who_have_none():
    room = WaitingRoom(1, 50, 4)
    greedy = [room.enter("greedy") for _ in range(4)]
    others = [room.enter(name) for name in "ab"]

    assert [ticket.n_ahead for ticket in greedy] == [0, 3, 4, 5]
    assert [ticket.n_ahead for ticket in others] == [1, 2]

    greedy[0].leave()  # now the one that waits longest and the others stand alike
    assert [ticket.n_ahead for ticket in (*greedy[1:], *others)] == [0, 3, 4, 1, 2]


def test_no_one_visitor_has_the_last_place_and_nobody_loses_one():
    room = WaitingRoom(2, 50, 4)
    greedy = [room.enter("greedy") for _ in range(3)]
    assert [ticket.n_ahead for ticket in greedy] == [0, 1, 2]

    others = [room.enter(name) for name in "ab"]
    assert [ticket.n_ahead for ticket in others] == [0, 1]

    greedy[0].leave()
    assert [ticket.n_ahead for ticket in (*greedy[1:], *others)] == [0, 2, 0, 1]


def test_on_ones_own_machine_one_has_every_place():
    room = WaitingRoom(2, 50, None)
    assert [room.enter("me").n_ahead for _ in range(3)] == [0, 0, 1]


def test_many_threads_at_once_get_places_of_their_own():
    room = WaitingRoom(1, 100, None)
    tickets = []
    threads = [threading.Thread(target=lambda: tickets.append(room.enter("x"))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(ticket.n_ahead for ticket in tickets) == list(range(50))
