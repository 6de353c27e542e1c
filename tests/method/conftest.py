import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Thousands of tiny products: more threads only wait for each other. Whoever sets the number gets it."""
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
