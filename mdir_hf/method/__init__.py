"""The paper's mathematics, as functions from tensors to numbers that do no I/O and no rounding."""
