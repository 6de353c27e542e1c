"""The transformation that takes the reference to the candidate, as data, on disk, and undone."""
