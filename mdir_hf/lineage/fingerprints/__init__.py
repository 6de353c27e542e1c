"""Fingerprints of models: sampled rows that are read once and compared pair by pair."""
