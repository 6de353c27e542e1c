"""An index of base models, and a search for the bases of a model."""
