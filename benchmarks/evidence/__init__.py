"""Write docs/evidence.md and its figures from the result files: ``python -m benchmarks.evidence``.

Nothing is typed in by hand that a result file holds, and what has no result file is listed as not run. A section is a
function from result files to Markdown; ``page.SECTIONS`` lists them.
"""
