"""Strangers that are prepared to look related: attacks, students, and the verdicts on them.

python -m benchmarks.real.framing build    # makes the framed models
python -m benchmarks.real.framing judge    # compares each with its victim, ten times with fresh samples
python -m benchmarks.real.framing list     # prints a line for each framed model
"""
