"""One comparison of two models, joined from the folders beside this one.

``model`` opens a model; ``plan`` says what would be read, ``reading`` reads it; ``matrices`` runs Algorithm 1 on the
embeddings, ``body`` and ``mixtures`` Algorithms 2 and 3 on the layers; ``decision`` holds the verdict rules; ``steps``
puts them in order.
"""
