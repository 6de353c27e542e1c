"""Write docs/evidence.md and its figures from the result files: ``python -m benchmarks evidence``.

All numbers come from result files; the first page lists experiments without a result file as not run. Each section
is a function from result files to Markdown; ``page.SECTIONS`` lists them.
"""
