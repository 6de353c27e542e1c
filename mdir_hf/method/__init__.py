"""The paper. Pure mathematics: tensors in, numbers out; no input or output, no names of models, no rounding.

``significance`` is the one formula; ``polar`` and ``matching`` make what goes into it; ``rows`` prepares embedding
rows; ``embedding`` is Algorithm 1 as a sequence of looks; ``calibration`` shows that the null holds.
"""
