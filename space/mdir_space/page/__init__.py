"""The Gradio page: its fields and panels, and the functions that update them."""
