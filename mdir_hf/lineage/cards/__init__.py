"""Badges and model cards: a result stated where people look, in neutral words, so that anybody can compute it again.

Nothing is imported here: a badge needs no torch, and comparing does.
"""

RELATIONS = ("finetune", "merge", "quantized", "adapter")
"""What a model can be of its base models, in the words of the Hub."""
