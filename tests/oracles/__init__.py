"""Our readers against the libraries that define the formats: what those write and read back, we read alike.

``make oracles`` runs the full numbers of cases and prints them; ``make test-slow`` runs a part.
"""
