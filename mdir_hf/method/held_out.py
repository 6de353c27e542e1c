"""Decides between two maps of the residual stream, on rows that neither was fitted on."""

from __future__ import annotations

import torch

from mdir_hf.method.matching import Matching
from mdir_hf.method.polar import polar_factor, row_factors
from mdir_hf.method.products import cross_product
from mdir_hf.method.rows import PairedRows


def rotation_predicts_better(rows: PairedRows, matching: Matching) -> bool:
    """Tell whether a fitted rotation carries rows closer to their partners than a matching of channels does.

    The trace of a rotation with a matching can be significant although the map is not a matching: the Q of a plain QR
    decomposition has a trace of about -1.6 sqrt(n), and a rotation of some channels leaves the others in place. Under
    noise a matching is better although its trace is small. So every second row fits a rotation, and both maps are
    applied to the others.

    Args:
        rows: Paired rows of the two models.
        matching: Channels matched on these rows, or fixed beforehand.

    Returns:
        Whether the mean cosine behind the rotation is larger. Cost O(r^2 n) for r rows, all in float64.
    """
    x, y = rows.reference.double(), rows.candidate.double()
    mine, other = row_factors(x[::2]), row_factors(y[::2])
    core = mine.scale[:, None] * cross_product(mine.left, other.left) * other.scale[None, :]
    # Behind V_x Ortho(core) V_y^T, without that n x n matrix.
    behind_rotation = _mean_cosine(x[1::2] @ mine.right @ polar_factor(core).matrix, y[1::2] @ other.right, y[1::2])
    signs = torch.from_numpy(matching.signs).to(x)
    carried, partners = x[1::2][:, torch.from_numpy(matching.reference)] * signs, y[1::2]
    behind_matching = _mean_cosine(carried, partners[:, torch.from_numpy(matching.candidate)], partners)
    return behind_rotation > behind_matching


def matched_cosine(rows: PairedRows, matching: Matching) -> float:
    """Mean cosine of paired rows after a matching of channels.

    It tells copies (0.7 and more) from strangers that were turned to match (0.48 at most). The matching may have been
    found on these rows: it has far too few choices to move a mean over hundreds of rows.

    Args:
        rows: Paired rows of the two models, centred.
        matching: Channels of both. If it is the identity on some channels of two models of one width, all channels are
            used.

    Returns:
        The mean cosine over the matched channels, in [-1, 1]. Cost O(r n).
    """
    x, y = rows.reference.double(), rows.candidate.double()
    if x.shape[1] != y.shape[1] or not matching.is_identity or matching.n_negative:
        x = x[:, torch.from_numpy(matching.reference)] * torch.from_numpy(matching.signs).to(x)
        y = y[:, torch.from_numpy(matching.candidate)]
    return _mean_cosine(x, y, y)


def _mean_cosine(carried: torch.Tensor, partners: torch.Tensor, whole: torch.Tensor) -> float:
    """Mean cosine of carried rows with their partners; both in a basis of a part of the space that the second spans."""
    lengths = (carried.norm(dim=1) * whole.norm(dim=1)).clamp(min=1e-30)
    return float(((carried * partners).sum(dim=1) / lengths).mean()) if len(carried) else 0.0
