"""Models between others, by rows that training left unchanged; ``test_tree`` places them by distances."""

from __future__ import annotations

import torch

from mdir_hf.lineage.trees.placing import between_by_equal_rows

R, N = 200, 256


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (R, N)), generator=torch.Generator().manual_seed(seed))


def test_untouched_rows_place_a_model_between_two_others():
    base = normal(0)
    first, second = base.clone(), base.clone()
    first[:120] += normal(1)[:120]  # rows 120 to 200 untouched
    second[80:] += normal(2)[80:]  # rows 0 to 80 untouched
    (found,) = between_by_equal_rows({"first": first, "base": base, "second": second})
    assert (found.model, set(found.ends)) == ("base", {"first", "second"})


def test_untouched_rows_give_no_order():
    base = normal(0)
    a, b = base.clone(), base.clone()
    a[:150] += normal(1)[:150]
    b[:150] += normal(2)[:150]
    assert between_by_equal_rows({"a": a, "base": base, "b": b}) == ()
    assert between_by_equal_rows({"a": a, "wider": normal(0, R, 2 * N), "b": b}) == ()
