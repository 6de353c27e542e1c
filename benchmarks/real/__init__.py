"""Real, long-trained weights, their derivatives, and the checker's results on each.

python -m benchmarks.real build    # fetches packages that contain models, makes bases and relatives
python -m benchmarks.real judge    # compares every pair without a stored line; all of them with --again
python -m benchmarks.real table    # the table of results
"""
