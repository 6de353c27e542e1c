"""Analyse, in two tiers, whether each projection of each layer was kept, moved or replaced."""
