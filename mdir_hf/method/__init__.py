"""The mathematics of the paper, as functions of tensors without I/O."""
