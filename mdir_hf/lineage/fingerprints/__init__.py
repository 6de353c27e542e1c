"""Fingerprints of models: sampled rows, which are read once and compared pair by pair."""
