"""Decides which branches may hold the root of a tree, by evidence on the order of two models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from mdir_hf.comparison.order_evidence import OrderEvidence


def root_candidates(
    names: Sequence[str], distances: npt.NDArray[np.float64], evidence: Iterable[OrderEvidence]
) -> tuple[str, ...]:
    """Return the models that may be nearest to the root of a tree by the evidence.

    Args:
        names: m models.
        distances: ``(m, m)`` between them.
        evidence: On pairs of them; evidence on other models is ignored.

    Returns:
        Models that lie on the earlier side of every piece of evidence; without any, all of them.
    """
    place = {name: at for at, name in enumerate(names)}
    left = list(names)
    for one in evidence:
        if one.earlier in place and one.later in place:
            earlier, later = distances[place[one.earlier]], distances[place[one.later]]
            left = [name for name in left if earlier[place[name]] < later[place[name]]]
    return tuple(left)
