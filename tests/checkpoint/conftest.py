import sys
from pathlib import Path

import pytest

# The conformance suites lie one folder up, shared with the tests of other folders.
sys.path.insert(0, str(Path(__file__).parents[1]))
pytest.register_assert_rewrite("conformance_tensors")
