"""Badges and model cards, which state a result in a form that anyone can verify.

This file imports nothing, because badges do not need torch.
"""

RELATIONS = ("finetune", "merge", "quantized", "adapter")
"""Relations of a model to its base models, as named by the Hub."""
