import threading

import pytest

from mdir_hf.errors import ByteBudgetError, InputError
from mdir_hf.model.hub import IoLedger


def test_reads_and_cached_bytes_are_counted_apart_and_by_file():
    ledger = IoLedger()
    with ledger.reserve("a", 10) as arrived:
        arrived(4)
        arrived(6)
    ledger.served_from_cache("a", 5)
    ledger.served_from_cache("b", 7)
    ledger.requested()
    ledger.requested(2)
    assert (ledger.bytes_read, ledger.bytes_from_cache, ledger.requests) == (10, 12, 3)
    assert ledger.files == {"a": 15, "b": 7}


def test_the_cap_may_be_reached_and_not_passed():
    ledger = IoLedger(max_bytes=10)
    with ledger.reserve("a", 10) as arrived:
        arrived(10)
    with pytest.raises(
        ByteBudgetError, match=r"b: the next read needs 1 bytes, but 10 of the 10 bytes.*raise the limit"
    ):
        ledger.reserve("b", 1).__enter__()


def test_reserved_bytes_count_against_the_cap_until_released():
    ledger = IoLedger(max_bytes=10)
    with ledger.reserve("a", 8), pytest.raises(ByteBudgetError):
        ledger.reserve("b", 3).__enter__()
    with ledger.reserve("b", 3) as arrived:
        arrived(3)
    assert ledger.bytes_read == 3


def test_a_failed_read_releases_only_missing_bytes():
    ledger = IoLedger(max_bytes=10)
    with pytest.raises(OSError, match="broken"), ledger.reserve("a", 8) as arrived:
        arrived(5)
        raise OSError("broken")
    with ledger.reserve("b", 5), pytest.raises(ByteBudgetError):
        ledger.reserve("c", 1).__enter__()


def test_bytes_that_come_a_second_time_count_and_stay_under_the_cap():
    ledger = IoLedger(max_bytes=10)
    with pytest.raises(ByteBudgetError), ledger.reserve("a", 6) as arrived:
        arrived(6)
        arrived(4)
        arrived(1)
    assert ledger.bytes_read == 10


def test_cached_bytes_are_free_of_the_cap():
    ledger = IoLedger(max_bytes=0)
    ledger.served_from_cache("a", 1000)
    assert ledger.bytes_from_cache == 1000


def test_a_negative_cap_is_refused():
    with pytest.raises(InputError, match="expected 0 or more"):
        IoLedger(max_bytes=-1)


def test_a_limited_block_counts_from_its_beginning_and_leaves_no_cap():
    ledger = IoLedger()
    read(ledger, 100)
    with ledger.limited(10):
        read(ledger, 4)
        with pytest.raises(ByteBudgetError, match="needs 7 bytes, but 4 of the 10 bytes allowed"):
            read(ledger, 7)
        read(ledger, 6)
    read(ledger, 1000)
    assert ledger.bytes_read == 1110


def test_a_block_that_fails_leaves_no_cap():
    ledger = IoLedger()
    with pytest.raises(ByteBudgetError), ledger.limited(10):
        read(ledger, 11)
    read(ledger, 1000)


@pytest.mark.parametrize(("outer", "inner"), [(10, 20), (20, 10), (10, None), (10, 10)])
def test_nested_blocks_keep_every_cap(outer, inner):
    ledger = IoLedger()
    with ledger.limited(outer):
        with ledger.limited(inner), pytest.raises(ByteBudgetError, match="of the 10 bytes"):
            read(ledger, 11)
        read(ledger, 10)
        with pytest.raises(ByteBudgetError):
            read(ledger, 11)


def test_a_block_stays_under_the_cap_of_the_ledger():
    ledger = IoLedger(max_bytes=10)
    read(ledger, 4)
    with ledger.limited(10), pytest.raises(ByteBudgetError, match="needs 7 bytes, but 4 of the 10 bytes"):
        read(ledger, 7)


def test_a_negative_cap_of_a_block_is_refused():
    ledger = IoLedger()
    with pytest.raises(InputError, match="expected 0 or more"), ledger.limited(-1):
        pass


def test_progress_adds_up_to_everything_that_arrived():
    seen = []
    ledger = IoLedger()
    with ledger.listening(seen.append):
        with ledger.reserve("a", 10) as arrived:
            arrived(4)
            arrived(0)
            arrived(6)
        ledger.served_from_cache("b", 5)
    read(ledger, 7)
    assert seen == [4, 6, 5]


def test_several_listen_and_each_stops_with_its_own_block():
    first, second = [], []
    ledger = IoLedger()
    with ledger.listening(first.append):
        with ledger.listening(second.append), ledger.listening(second.append):
            read(ledger, 3)
        read(ledger, 4)
    assert (first, second) == ([3, 4], [3, 3])


def test_an_error_in_a_listener_ends_the_read_and_releases_its_bytes():
    ledger = IoLedger(max_bytes=10)

    def stop(n_bytes):
        raise OSError("stopped")

    with pytest.raises(OSError, match="stopped"), ledger.listening(stop):
        read(ledger, 4)
    read(ledger, 6)
    assert ledger.bytes_read == 10


def test_threads_lose_no_byte_and_progress_is_serialised():
    total, inside = 0, threading.Lock()

    def on_bytes(n_bytes):
        nonlocal total
        assert inside.acquire(blocking=False), "two calls at once"
        total += n_bytes
        inside.release()

    ledger = IoLedger()

    def work():
        for _ in range(1000):
            with ledger.reserve("a", 10) as arrived:
                arrived(10)
                ledger.requested()

    threads = [threading.Thread(target=work) for _ in range(8)]
    with ledger.limited(80_000), ledger.listening(on_bytes):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ledger.bytes_read == ledger.files["a"] == total == 80_000
    assert ledger.requests == 8000


def read(ledger, n_bytes):
    with ledger.reserve("a", n_bytes) as arrived:
        arrived(n_bytes)
