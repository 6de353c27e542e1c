"""Real models with long training, their derivatives, and the checker's results on each pair.

python -m benchmarks.real build    # fetches packages that contain models, makes bases and relatives
python -m benchmarks.real judge    # compares every pair without a stored line; with --again, all pairs
python -m benchmarks.real table    # prints the table of results
"""
