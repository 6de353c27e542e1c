"""One comparison of two models, joined from the folders beside this one.

``model`` opens a model; ``plan`` says what would be read, ``reading`` reads it; ``embeddings`` runs Algorithm 1,
``layers`` and ``mixtures`` Algorithms 2 and 3; ``neurons`` compares neurons by number; ``decide`` holds the verdict
rules; ``run`` puts them in order.
"""
