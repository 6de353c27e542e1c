"""Find the families among many models, reading each model once; a stopped survey can be resumed."""
