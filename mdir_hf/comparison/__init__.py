"""Compare two models; ``run`` contains the steps."""
