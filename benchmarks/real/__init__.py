"""Real models from packages, models made from them, and what the checker and other methods say about them."""
