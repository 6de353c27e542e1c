"""What a merge says of its parents, beside what its weights say."""
