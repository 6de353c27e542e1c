"""What one model looks like to a comparison: what is found of it, and that as text."""

from mdir_hf.comparison.inspection.found import Inspection, inspect_model, inspect_named

__all__ = ["Inspection", "inspect_model", "inspect_named"]
