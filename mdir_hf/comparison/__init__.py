"""One comparison of two models; ``run`` has its steps."""
