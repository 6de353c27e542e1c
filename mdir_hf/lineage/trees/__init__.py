"""Family trees of related models, from the rows that were kept of them."""
