"""The transformation from the reference to the candidate: find it, store it and undo it."""
