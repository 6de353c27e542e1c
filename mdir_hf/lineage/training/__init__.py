"""Measure how far training moves a model from its base, in ``Trainer``, TRL or custom loops."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mdir_hf.lineage.training.callback import LineageCallback
    from mdir_hf.lineage.training.drift import Drift, PartDrift
    from mdir_hf.lineage.training.watching import ModelWatch, watch

_HOME_OF = {
    "Drift": "drift",
    "LineageCallback": "callback",
    "ModelWatch": "watching",
    "PartDrift": "drift",
    "watch": "watching",
}

__all__ = ["Drift", "LineageCallback", "ModelWatch", "PartDrift", "watch"]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mdir_hf.lineage.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mdir_hf.lineage.training.{_HOME_OF[name]}"), name)
