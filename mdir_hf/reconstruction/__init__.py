"""Find, store and undo the transformation from the reference to the candidate."""
