"""Many models: every model is read once, its sampled rows are kept, and pairs are computed from those."""
