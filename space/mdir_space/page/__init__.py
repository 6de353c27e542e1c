"""The Gradio page: its fields, its panels, and what updates them."""
