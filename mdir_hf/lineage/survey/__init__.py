"""Compare every pair of many models. Each model is read once, and a stopped survey can resume."""
