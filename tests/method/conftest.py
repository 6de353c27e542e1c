import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Use one thread unless OMP_NUM_THREADS is set: these thousands of tiny products do not gain from more."""
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
