"""Inspect one model as a comparison sees it, and format the result as text."""

from mdir_hf.comparison.inspection.found import Inspection, inspect_model, inspect_named

__all__ = ["Inspection", "inspect_model", "inspect_named"]
