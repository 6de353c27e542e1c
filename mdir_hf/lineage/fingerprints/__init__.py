"""Fingerprints of models: sampled rows, read once and compared pair by pair."""
