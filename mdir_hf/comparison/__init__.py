"""Compare two models. The steps are in ``run``."""
