"""All numbers on which a verdict can depend, with the measurements behind them.

Sizes of samples are not thresholds: they change the bytes and the power of a comparison, and stand beside the code that
reads the samples.
"""

from __future__ import annotations

ALPHA = 1e-10
"""Default level of a comparison, fixed in advance. The paper has no other number."""

TESTED = {192: 64, 64: 32, 40: 20}
"""Number of tested neurons per layer, keyed by the number of neurons that a layer must have. In a copy, all of them
keep their number, so p is at most 1/64! = 10^-89, 10^-35 or 10^-18. Smaller layers are not compared."""

LEAST_CERTAIN_SHARE = 0.5
"""Two layers match if at least this share of the tested neurons is certain: 32 of 64. Strangers reach 4, and framers
who copy no row 14; copies of SmolLM2-135M reach 62 to 64 under noise as large as the weights, and 47 to 58 under
three times that noise (``benchmarks.neuron_null``, ``benchmarks.real``, ``benchmarks.real.framing``)."""

CHANNEL_ALPHA = 0.01
"""Family-wise level at which a neuron counts as certain over gate and up together: the best of all pairs of random
neurons exceeds it in one of 100 samples (``benchmarks.neuron_null``)."""

LEAST_DEVIATIONS = 3.0
"""Minimum cosine in each matrix for a neuron to count as certain, in standard deviations for random directions. Without
it, if neurons were split without changing the model's output, copies of up alone would count as certain
(``benchmarks.neuron_null``)."""

MOST_NOMINATED = 4
"""Maximum number of nominated pairs of layers that are compared again by gate and up; p pays for all pairs."""

MOST_SEARCHED = 2
"""Maximum number of pairs of layers that are searched behind one map. Each search reads one whole gate."""

FALSE_NOMINATIONS = 1e-3
"""Expected number of false nominations of layers by their heads if correlations were Gaussian."""

LEAST_HEAD_MEAN = 0.25
"""Minimum mean correlation of the paired heads of two nominated layers. Different layers of one real model reach 0.25,
and the best of all layers of two unrelated ones 0.29, but neither are nominated; noise of 1 RMS leaves 0.28 to 0.73
(docs/LOG.md, 2026-11-28)."""

COPIED_HEAD_MEAN = 0.5
"""Mean correlation from which the attention of two layers is called a copy, which makes a comparison without matching
neurons inconclusive: far above 0.29, and exceeded by fine-tunes."""

COPIED_HEAD_DEVIATIONS = 4.0
"""The same limit for small heads, whose correlations vary more, in standard deviations; for nominations it is
:data:`LEAST_DEVIATIONS`."""

LEAST_EXPERT_Z = 5.0
"""A pair of experts is nominated if its mean cosine is more than this many standard deviations above the mean cosine of
rows with different numbers."""

MOST_EXPERT_PAIRS = 8
"""Maximum number of nominated pairs of experts that are tested, most similar first; p pays for all pairs."""

COPIED_COSINE = 0.7
"""Paired rows of embeddings count as copies if their mean cosine is at least this, which makes a comparison without
matching neurons inconclusive. Unrelated models that were rotated to match reach 0.48; fine-tuned, further pretrained
and distilled relatives with copied rows reach at least 0.74 (``benchmarks.real.framing``)."""

LEAST_COMPARED_SHARE = 0.5
"""If fewer than this share of a model's layers can be compared, a comparison without a match is inconclusive."""
