"""Render a report as text, Markdown, HTML, figures, or a folder with all of them."""
