"""Fingerprints of models: rows for one sample of tokens, read once and compared pair by pair."""
