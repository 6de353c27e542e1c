"""The tiered layer analysis: whether each projection of each layer was kept, moved or replaced."""
