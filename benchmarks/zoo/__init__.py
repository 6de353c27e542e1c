"""A lineage zoo: four families of small, truly trained models whose ancestry is known, every pair with its reason.

python -m benchmarks.zoo.build     # trains what is missing; about half an hour of one core for all
python -m benchmarks.zoo.run       # every pair through the checker and through every peer
python -m benchmarks.evidence      # docs/evidence.md from the results
"""
