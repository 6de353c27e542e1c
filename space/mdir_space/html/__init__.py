"""Results, plans and refusals as HTML, from jinja2 templates that escape all text, and their links."""
