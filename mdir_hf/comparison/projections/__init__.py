"""The tiered layer analysis: for each projection of each layer, whether it was kept, moved or replaced.

Tier 1 compares sampled rows under their own numbers; tier 2 looks for rows that were moved.
"""
