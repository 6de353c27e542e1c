"""A zoo of small trained models of known ancestry, and what the checker and other methods say about them."""
