"""Family trees of related models, grown from their stored rows."""
