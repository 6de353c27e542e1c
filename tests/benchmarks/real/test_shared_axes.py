"""Views of rows that the bound allows: they turn with the rows, whichever way these are turned."""

import pytest
import torch

from benchmarks.real.shared_axes import N_LEADING, VIEWS, halves, statistics


def rows(seed, n=96, n_rows=800):
    """Rows with directions of very different size, as embeddings have, in float64."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(0, -1, n, dtype=torch.float64)
    return torch.randn(n_rows, n, dtype=torch.float64, generator=generator) * sizes


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_turned_rows_is_the_turned_view(view):
    x, third = rows(0), rows(1)
    turn = torch.linalg.qr(torch.randn(96, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(2))).Q
    torch.testing.assert_close(VIEWS[view](x @ turn, third), VIEWS[view](x, third) @ turn, rtol=0, atol=1e-9)


@pytest.mark.parametrize("view", VIEWS)
def test_a_noised_copy_shows_in_every_view_a_stranger_in_none(view):
    x, third = rows(0), rows(1)
    copy, stranger = x + 0.1 * rows(3), rows(4)
    found = statistics(*(VIEWS[view](each, third) for each in (x, copy)))
    assert found["log10_p"] < -10
    # Without the leading directions 32 of 96 are left.
    assert found["trace"] > (0.5 * 32 if str(N_LEADING) in view else 0.9 * 96)
    assert statistics(*(VIEWS[view](each, third) for each in (x, stranger)))["log10_p"] == 0.0


def test_halves_of_the_tokens_agree_where_meaning_is_shared():
    x, turn = rows(0), torch.linalg.qr(rows(5)[:96]).Q
    # Two models of one language in unrelated bases: the matching is luck, and is the same luck in both halves.
    found = halves(x, x @ turn)
    assert found["likeness of halves"] > 0.99
    assert found["carried"] == pytest.approx(found["trace"], rel=0.01)
