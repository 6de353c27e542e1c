"""What is kept of each of many models: its rows for one sample of tokens, read once, and compared pair by pair."""
