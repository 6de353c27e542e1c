"""The mathematics of the paper: tensors in, numbers out. No input or output, no model names, no rounding."""
