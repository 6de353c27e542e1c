"""Compare every pair of many models; each model is read once, and a stopped survey can be resumed."""
