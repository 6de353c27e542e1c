"""Family trees of related models, from their stored rows."""
