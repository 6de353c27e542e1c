"""A report for people: text, Markdown, HTML, figures, a folder with all of them."""
