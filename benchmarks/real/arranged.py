"""Renumber the channels of unrelated models so that they agree: ``python -m benchmarks.real.arranged``.

Renumbering is free and does not change a model's function. For pairs of unrelated real models, the candidate's channels
are put in the order of the best assignment, and in the order of mutual best partners, which maximises this statistic.
The script prints the counts, and the number of these channels that are also significant one by one. It takes a minute
on one core.
"""

from __future__ import annotations

import torch

from benchmarks.real.bases import base_folder
from benchmarks.real.workshop import LARGE, MIDDLE, SENTENCES, SMALL
from mdir_hf.method.matching import IntArray, best_matching
from mdir_hf.method.neuron_numbers import mutual_partners, numbering_of
from mdir_hf.method.polar import polar_factor
from mdir_hf.method.rows import pair_rows
from mdir_hf.model.comparable import n_rows, vocabularies_of
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import read_part
from mdir_hf.model.tokens import common_vocabulary

N_TOKENS = 12_000
STRANGERS = ((SMALL, MIDDLE), (SENTENCES[0], SMALL), (MIDDLE, LARGE))


def main() -> None:
    """Print a line for each pair and each arrangement."""
    for names in STRANGERS:
        polar = polar_of(*(Model(open_repository(base_folder(name))) for name in names))
        assigned = best_matching(polar, signed=True)
        assert assigned is not None  # computed regardless of its significance
        orders = {
            "original order": (torch.arange(polar.shape[1]).numpy(),) * 2,
            "by assignment": (assigned.reference, assigned.candidate),
            "by mutual best": mutual_partners(polar),
        }
        for name, partners in orders.items():
            arranged = polar[:, numbered_like(*partners, n_candidate=polar.shape[1])]
            numbering = numbering_of(arranged, best_matching(arranged, signed=True))
            print(
                f"{' | '.join(names)}, {name}: {numbering.own_number} of {numbering.pairs} pairs under their own "
                f"number, log10 p {numbering.log10_p:.0f}; {numbering.certain_share:.0%} of the channels are "
                "significant",
                flush=True,
            )


def polar_of(reference: Model, candidate: Model) -> torch.Tensor:
    """Return the polar factor of sampled common tokens, ``(n_reference, n_candidate)``."""
    reference_tokens, candidate_tokens = vocabularies_of(reference, candidate)
    assert reference_tokens is not None and candidate_tokens is not None
    common = common_vocabulary(
        reference_tokens, candidate_tokens, n_reference_rows=n_rows(reference), n_candidate_rows=n_rows(candidate)
    )
    drawn = torch.randperm(len(common), generator=torch.Generator().manual_seed(0))[:N_TOKENS].sort().values.numpy()
    rows = pair_rows(
        read_part(reference.tensors, reference.anatomy.embedding, common.reference_rows[drawn]).float(),
        read_part(candidate.tensors, candidate.anatomy.embedding, common.candidate_rows[drawn]).float(),
    )
    return polar_factor(rows.reference.T @ rows.candidate).matrix


def numbered_like(reference: IntArray, candidate: IntArray, *, n_candidate: int) -> torch.Tensor:
    """Return the order of the candidate's channels in which each partner has the number of its reference channel."""
    partner = {int(i): int(j) for i, j in zip(reference, candidate, strict=True) if i < n_candidate}
    left = iter(sorted(set(range(n_candidate)) - set(partner.values())))
    return torch.tensor([partner[i] if i in partner else next(left) for i in range(n_candidate)])


if __name__ == "__main__":
    main()
