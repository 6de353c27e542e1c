"""Family trees of related models, built from their stored rows."""
