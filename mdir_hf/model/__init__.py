"""A model as files, roles, tokens: everything between a name and the rows that are compared."""
