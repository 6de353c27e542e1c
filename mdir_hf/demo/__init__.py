"""The demonstration: a small lineage of models, and a Hub on this machine to serve it."""
