"""Lineage zoo: four families of small trained models with known ancestry, and the true relation of all pairs.

python -m benchmarks.zoo.build     # trains missing models; about half an hour on one core for all
python -m benchmarks.zoo.run       # every pair through the checker and through every peer
python -m benchmarks.evidence      # docs/evidence.md from the results
"""
