"""Write docs/evidence.md and its figures from the result files: ``python -m benchmarks.evidence``.

All numbers come from result files; experiments without a result file are listed as not run. A section is a function
from result files to Markdown; ``page.SECTIONS`` lists them.
"""
