"""Badges and model cards that state results in a verifiable form.

This file imports nothing, so that badges can be made without importing torch.
"""

RELATIONS = ("finetune", "merge", "quantized", "adapter")
"""The Hub's names for a model's relation to its bases."""
