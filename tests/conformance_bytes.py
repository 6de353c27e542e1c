"""Test suite for byte sources. Subclass it, and provide a ``source`` fixture over ``CONTENT``."""

import concurrent.futures

import numpy as np
import pytest

from mdir_hf.errors import InputError, ShortReadError
from mdir_hf.model.sources import ByteSource

CONTENT = np.random.default_rng(7).integers(0, 256, 100_003, dtype=np.uint8).tobytes()
"""A prime number of bytes, so that no size divides it."""


class ByteSourceConformance:
    """One suite for every :class:`ByteSource`."""

    @pytest.fixture
    def source(self):
        raise NotImplementedError("provide a source whose bytes are CONTENT")

    def test_is_a_byte_source(self, source):
        assert isinstance(source, ByteSource)

    def test_knows_its_size(self, source):
        assert source.n_bytes == len(CONTENT)

    def test_has_a_label_for_messages(self, source):
        assert isinstance(source.label, str)
        assert source.label

    def test_read_gives_exactly_the_requested_bytes(self, source):
        for start, stop in ((0, 1), (0, 8), (17, 4242), (65_535, 65_537), (100_002, 100_003), (0, 100_003)):
            got = source.read(start, stop)
            assert type(got) is bytes
            assert got == CONTENT[start:stop], (start, stop)

    def test_an_empty_range_gives_no_bytes(self, source):
        assert [source.read(at, at) for at in (0, 500, 100_003)] == [b""] * 3

    def test_reading_twice_gives_the_same(self, source):
        assert source.read(100, 200) == source.read(100, 200)

    def test_reading_past_the_end_names_the_source(self, source):
        for start, stop in ((0, 100_004), (100_003, 100_004), (200_000, 200_001)):
            with pytest.raises(ShortReadError, match=r"100,003") as caught:
                source.read(start, stop)
            assert source.label in str(caught.value)

    def test_an_invalid_range_is_refused(self, source):
        for start, stop in ((-1, 5), (9, 3), (-5, -1)):
            with pytest.raises(InputError, match="0 <= start <= stop"):
                source.read(start, stop)

    def test_read_many_gives_each_span_in_the_requested_order(self, source):
        spans = [(90_000, 90_100), (0, 10), (50, 50), (40_000, 70_000), (0, 10), (100_000, 100_003)]
        assert list(source.read_many(spans)) == [CONTENT[start:stop] for start, stop in spans]

    def test_read_many_keeps_the_order_of_many_spans(self, source):
        spans = [(start, start + 97) for start in range(0, 99_000, 1_001)]
        assert list(source.read_many(spans)) == [CONTENT[start:stop] for start, stop in spans]

    def test_read_many_of_no_spans_gives_nothing(self, source):
        assert list(source.read_many([])) == []

    def test_read_many_refuses_a_span_past_the_end(self, source):
        with pytest.raises(ShortReadError, match=r"100,003"):
            list(source.read_many([(0, 5), (100_000, 100_004)]))

    def test_read_many_may_be_left_early(self, source):
        pieces = source.read_many([(start, start + 10) for start in range(0, 90_000, 1_000)])
        assert next(pieces) == CONTENT[:10]
        del pieces
        assert source.read(3, 7) == CONTENT[3:7]

    def test_several_threads_may_read_at_once(self, source):
        starts = range(0, 100_000, 5_003)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            got = list(pool.map(lambda start: source.read(start, start + 3), starts))
        assert got == [CONTENT[start : start + 3] for start in starts]
