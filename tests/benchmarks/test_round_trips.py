import pytest

from benchmarks.round_trips import waited_s
from tests.loopback.traffic import LoggedRequest


@pytest.mark.parametrize(
    ("times", "expected"),
    [([], 0), ([(1, 2)], 1), ([(1, 2), (5, 7)], 3), ([(1, 4), (2, 3)], 3), ([(2, 5), (1, 3), (4, 6), (8, 9)], 6)],
)
def test_waiting_is_time_with_a_request_under_way(times, expected):
    requests = [LoggedRequest("GET", "hub", "/", None, False, began=began, ended=ended) for began, ended in times]
    assert waited_s(requests) == expected
