"""A model as files, roles and tokens: everything from its name to the rows that are compared."""
