"""The tiered layer analysis: for each projection of each layer, whether it was kept, moved or replaced.

``samples`` reads rows, ``tier_one`` compares them under their own numbers, ``tier_two_heads`` and ``tier_two_neurons``
look for rows that were moved, and ``analysis`` runs them in order. ``records`` makes the table of a report,
``layer_maps`` the layer map that the rows show.
"""
