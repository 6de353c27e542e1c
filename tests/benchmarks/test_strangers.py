"""Models of one recipe are compared at both levels, and the lines have what the page shows."""

import copy

import pytest

from benchmarks.strangers import LEVELS, compared
from tests.comparison.relatives import SIZES, drift, write
from tests.method.obfuscation import new_model


@pytest.mark.parametrize("level", LEVELS)
def test_a_line_has_the_verdict_and_the_counts(level, tmp_path):
    base = new_model(seed=0, **SIZES)
    write(tmp_path / "llama-0", base)
    write(tmp_path / "retokenised", drift(copy.deepcopy(base), 0.1))
    row = compared(tmp_path, ("llama-0", "retokenised"), level, is_related=True)
    assert (row["verdict"], row["neurons_own_number"], row["neurons_tested"]) == ("homologous", 64, 64)
    assert row["trace_over_rank"] > 0.9
    assert row["layers_matched"] == (4 if level == "layers" else None)
    assert ("table_4" in row) is (level == "auto")
