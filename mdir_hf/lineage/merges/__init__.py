"""The declared and the measured parents of a merge."""
