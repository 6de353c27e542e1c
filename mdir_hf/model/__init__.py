"""A model's files, roles and tokens: everything between its name and the rows that are compared."""
