"""Compare every pair of many models, reading each model once; a stopped survey can be resumed."""
