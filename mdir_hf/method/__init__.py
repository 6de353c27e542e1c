"""The mathematics of the paper: tensors in, numbers out. No input or output, no model names, no rounding.

``significance`` contains the central formula, and ``polar`` and ``matching`` compute its inputs. ``rows`` prepares
embedding rows, ``embedding`` runs Algorithm 1 as a sequence of looks, and ``calibration`` checks the null hypothesis.
"""
