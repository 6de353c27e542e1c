"""Cut a model as in SliceGPT (Ashkboos et al., 2024): every layer in its own basis, trailing channels removed.

Between two norms the residual stream is carried into the principal components of the second norm's inputs, and the last
ones are removed. The stored model has the names of the original and fewer channels. The products of neighbouring bases,
which SliceGPT stores for the residual connections, have no place under those names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.real.relatives import rebuilt
from benchmarks.zoo.stack import take_apart

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def sliced(model: PreTrainedModel, ids: torch.Tensor, *, share_cut: float) -> PreTrainedModel:
    """Cut a share of the channels.

    Args:
        model: A Llama or Qwen2, in float32.
        ids: Tokens of a text, ``(sequences, length)``, for computing the principal components.
        share_cut: Share of the channels to cut, 0.25 for a quarter.
    """
    stack = take_apart(model)
    n_kept = round(stack.embedding.shape[1] * (1.0 - share_cut))
    bases = [basis[:, :n_kept].float() for basis in _principal_components(model, ids)]
    head = stack.embedding if stack.head is None else stack.head
    stack.head = (head * stack.norm.weight) @ bases[-1]
    stack.embedding = stack.embedding @ bases[0]
    stack.norm.weight = torch.ones(n_kept)
    for block, attention, mlp, following in zip(stack.blocks, bases[::2], bases[1::2], bases[2::2], strict=False):
        for (norm, readers), basis in zip(block.readers, (attention, mlp), strict=True):
            for reader in readers:
                reader.weight = (reader.weight * norm.weight) @ basis
            norm.weight = torch.ones(n_kept)
        block.o.weight = mlp.T @ block.o.weight
        block.down.weight = following.T @ block.down.weight
    return rebuilt(model, stack)


def _principal_components(model: PreTrainedModel, ids: torch.Tensor) -> list[torch.Tensor]:
    """Return the principal components of each norm's normalised inputs: one basis, descending, per norm."""
    sums: list[torch.Tensor] = []

    def add(at: int) -> object:
        def hook(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            rows = given[0].flatten(0, -2).double()
            rows = rows / rows.square().mean(dim=1, keepdim=True).sqrt()
            sums[at] += rows.T @ rows

        return hook

    norms = [norm for layer in model.model.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    hooks = []
    for at, norm in enumerate([*norms, model.model.norm]):
        sums.append(torch.zeros(model.config.hidden_size, model.config.hidden_size, dtype=torch.float64))
        hooks.append(norm.register_forward_pre_hook(add(at)))
    for sequence in ids:
        model(sequence[None])
    for hook in hooks:
        hook.remove()
    return [torch.linalg.eigh(each).eigenvectors.flip(1) for each in sums]
