"""Changed valid files give a result or an :class:`MdirError`. A short run; ``make fuzz`` takes an hour."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.property import FINDINGS, check
from tests.fuzz.targets import TARGETS

SHORT = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
FOUND = sorted(path for path in FINDINGS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_the_valid_file_is_read(name: str):
    target = TARGETS[name]
    assert check(target.read, target.valid).startswith("result: ")


@pytest.mark.parametrize("name", TARGETS)
@SHORT
@given(choice=st.data())
def test_a_changed_file_gives_a_result_or_our_error(name: str, choice):
    check(TARGETS[name].read, choice.draw(TARGETS[name].files))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_earlier_findings_of_the_fuzzer_stay_fixed(path):
    check(TARGETS[path.parent.name].read, path.read_bytes())


def test_a_reader_that_breaks_the_property_is_found():
    def careless(data: bytes) -> int:
        return data[0]

    with pytest.raises(IndexError):
        check(careless, b"")
    answers = iter((1, 2))
    with pytest.raises(AssertionError, match="differs"):
        check(lambda data: next(answers), b"")
