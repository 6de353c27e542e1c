"""Badges and model cards: state a result in a form that anyone can verify.

Imports nothing: badges do not need torch.
"""

RELATIONS = ("finetune", "merge", "quantized", "adapter")
"""Relations of a model to its base models, as named by the Hub."""
