"""Open a model by name and find the rows to compare, using its files, tensor roles and tokens."""
