"""Tools for many models: fingerprints, surveys, indexes, trees, cards, merges and training."""
