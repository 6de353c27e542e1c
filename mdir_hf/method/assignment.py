"""The assignment of rows to columns with the largest sum of entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def best_assignment(scores: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Assign each row or each column, whichever are fewer, so that the sum of the chosen entries is largest.

    Returns:
        The rows, ascending, and the column of each. Takes cubic time.
    """
    from scipy.optimize import linear_sum_assignment  # imported here, because most comparisons end without it

    # SciPy copies float32 scores to float64, and copies them again to negate them.
    rows, columns = linear_sum_assignment(np.negative(scores, dtype=np.float64))
    return rows, columns
