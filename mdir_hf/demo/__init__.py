"""The demo: a small family of trained models, and a local server that replaces the Hub."""
