"""Choose between two maps of the residual stream, on rows that neither was fitted on."""

from __future__ import annotations

import torch

from mdir_hf.method.matching import Matching
from mdir_hf.method.polar import polar_factor, row_factors
from mdir_hf.method.products import cross_product
from mdir_hf.method.rows import PairedRows


def rotation_predicts_better(rows: PairedRows, matching: Matching) -> bool:
    """Return whether a fitted rotation maps rows closer to their partners than a matching of channels does.

    The trace of a rotation with a matching can be significant even if the map is not a matching: the Q of a plain QR
    decomposition has a trace of about -1.6 sqrt(n), and a rotation of some channels leaves the others in place. Under
    noise a matching is better although its trace is small. So the rotation is fitted on every second row, and both maps
    are applied to the others.

    Args:
        rows: Paired rows of the two models.
        matching: Channels matched on these rows, or fixed in advance.

    Returns:
        Whether the rotation gives the larger mean cosine. Cost O(r^2 n) for r rows, all in float64.
    """
    x, y = rows.reference.double(), rows.candidate.double()
    reference, candidate = row_factors(x[::2]), row_factors(y[::2])
    core = reference.scale[:, None] * cross_product(reference.left, candidate.left) * candidate.scale[None, :]
    # Apply V_x Ortho(core) V_y^T without forming that n x n matrix.
    behind_rotation = _mean_cosine(
        x[1::2] @ reference.right @ polar_factor(core).matrix, y[1::2] @ candidate.right, y[1::2]
    )
    signs = torch.from_numpy(matching.signs).to(x)
    carried, partners = x[1::2][:, torch.from_numpy(matching.reference)] * signs, y[1::2]
    behind_matching = _mean_cosine(carried, partners[:, torch.from_numpy(matching.candidate)], partners)
    return behind_rotation > behind_matching


def matched_cosine(rows: PairedRows, matching: Matching) -> float:
    """Return the mean cosine of paired rows after a matching of channels.

    It distinguishes copies (0.7 and more) from unrelated models that were rotated to match (0.48 at most). The matching
    may have been found on these rows: it has far too few degrees of freedom to affect a mean over hundreds of rows.

    Args:
        rows: Paired, centred rows of the two models.
        matching: Matched channels. If it is the identity on some channels of two models of equal width, all channels
            are used.

    Returns:
        The mean cosine over the matched channels, in [-1, 1]. Cost O(r n).
    """
    x, y = rows.reference.double(), rows.candidate.double()
    if x.shape[1] != y.shape[1] or not matching.is_identity or matching.n_negative:
        x = x[:, torch.from_numpy(matching.reference)] * torch.from_numpy(matching.signs).to(x)
        y = y[:, torch.from_numpy(matching.candidate)]
    return _mean_cosine(x, y, y)


def _mean_cosine(carried: torch.Tensor, partners: torch.Tensor, whole: torch.Tensor) -> float:
    """Return the mean cosine of carried rows with their partners, using the lengths of ``whole``."""
    lengths = (carried.norm(dim=1) * whole.norm(dim=1)).clamp(min=1e-30)
    return float(((carried * partners).sum(dim=1) / lengths).mean()) if len(carried) else 0.0
