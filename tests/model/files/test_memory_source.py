import pytest
import torch

from mdir_hf.errors import InputError
from mdir_hf.model.files import MemorySource
from tests.conformance_tensors import TensorSourceConformance


class TestMemorySource(TensorSourceConformance):
    def make(self, tensors, tmp_path):
        return MemorySource(tensors)


def test_a_dtype_that_no_checkpoint_holds_is_refused():
    with pytest.raises(InputError, match=r"'w' has dtype torch\.complex128"):
        MemorySource({"w": torch.zeros(1, dtype=torch.complex128)})
