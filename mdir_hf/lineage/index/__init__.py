"""An index of base models, and which of them a model shares ancestry with."""
