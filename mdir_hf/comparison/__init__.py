"""One comparison of two models. ``run`` puts the steps in order."""
