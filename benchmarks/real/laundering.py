"""Disguise a Llama-like model at no loss of function: a cipher, a decoy layer, split neurons and doubled heads.

python -m benchmarks.real.laundering OUT BASE_FOLDER

Writes one folder for each of ``DISGUISES`` into OUT, and prints how much the logits changed. A disguise that changes
the function is an error.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.real.bases import load, save
from benchmarks.real.relatives import Edit, one_after_the_other, rebuilt
from benchmarks.zoo import edits
from benchmarks.zoo.stack import Stack, take_apart

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARE_SPLIT = 0.4
"""Share of the neurons of each layer that are split."""

MOST_CHANGE, MOST_STORED_CHANGE = 1e-3, 0.1
"""Largest root mean square change of the logits, in units of their standard deviation: in float32, and after the
weights were rounded to BF16."""

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Disguise:
    """A disguise that preserves a model's function.

    Attributes:
        name: Name of the disguise and its folder.
        done: Effect, as a phrase without full stop.
        edit: The edit of the weights; it may change the given stack.
        is_enciphered: Whether the spellings of all tokens are substituted and their ids reordered.
    """

    name: str
    done: str
    edit: Edit
    is_enciphered: bool = False


# --- edits that keep the function


def split_neurons(parts: int) -> Edit:
    """Split 40% of the neurons: parts share gate and down, and their ups differ by noise that cancels; all shuffled.

    The noise is as long as the row: in two parts, each has a cosine of 0.45 to the neuron.
    """

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        for block in stack.blocks:
            assert block.gate is not None, "splitting up needs a gate"
            n = len(block.up.weight)
            chosen = torch.randperm(n, generator=generator)[: round(SHARE_SPLIT * n)]
            ups = block.up.weight[chosen]
            noise = torch.randn(parts - 1, *ups.shape, generator=generator, dtype=ups.dtype)
            noise *= ups.norm(dim=1, keepdim=True) / noise.norm(dim=2, keepdim=True)
            split = torch.cat([ups / parts + noise, (ups / parts - noise.sum(dim=0))[None]])
            block.up.weight[chosen] = split[0]
            block.up.weight = torch.cat([block.up.weight, *split[1:]])
            block.gate.weight = torch.cat([block.gate.weight] + (parts - 1) * [block.gate.weight[chosen]])
            block.down.weight = torch.cat([block.down.weight] + (parts - 1) * [block.down.weight[:, chosen]], dim=1)
            edits.shuffle_neurons(block, generator, signed=True)
        return stack

    return edit


def neurons_permuted(stack: Stack, generator: torch.Generator) -> Stack:
    """Reorder the neurons of every layer."""
    for block in stack.blocks:
        edits.shuffle_neurons(block, generator, signed=False)
    return stack


def heads_doubled(stack: Stack, generator: torch.Generator) -> Stack:
    """Copy every head; both copies share the output in random parts, and all are shuffled."""
    d, n_kv, n_heads = stack.head_dim, stack.n_kv_heads, stack.n_heads
    made = copy.copy(stack)
    made.n_kv_heads, made.n_heads = 2 * n_kv, 2 * n_heads
    for block in made.blocks:
        for affine in (block.q, block.k, block.v):
            affine.weight = affine.weight.repeat(2, 1)
        share = torch.rand(n_heads, generator=generator, dtype=block.o.weight.dtype).repeat_interleave(d)
        block.o.weight = torch.cat([block.o.weight * share, block.o.weight * (1 - share)], dim=1)
        edits.shuffle_heads(made, block, generator)
    return made


def with_decoy(stack: Stack, generator: torch.Generator) -> Stack:
    """Put a layer in front whose heads and neurons cancel each other, with weights as large as the first layer's.

    All heads are equal except for O, which sums to zero over them. Neurons stand in pairs with opposite down.
    """
    decoy = copy.deepcopy(stack.blocks[0])
    assert decoy.gate is not None, "a decoy needs a gate"
    for affine in (decoy.q, decoy.k, decoy.v, decoy.o, decoy.gate, decoy.up, decoy.down):
        rms = affine.weight.square().mean().sqrt()
        affine.weight = rms * torch.randn(affine.weight.shape, generator=generator, dtype=affine.weight.dtype)
    d = stack.head_dim
    for affine, n in ((decoy.q, stack.n_heads), (decoy.k, stack.n_kv_heads), (decoy.v, stack.n_kv_heads)):
        affine.weight = affine.weight[:d].repeat(n, 1)
    by_head = decoy.o.weight.reshape(-1, stack.n_heads, d)
    decoy.o.weight = (by_head - by_head.mean(dim=1, keepdim=True)).reshape(decoy.o.weight.shape)
    n_pairs = len(decoy.up.weight) // 2
    for affine in (decoy.gate, decoy.up):
        affine.weight[n_pairs : 2 * n_pairs] = affine.weight[:n_pairs]
    decoy.down.weight[:, n_pairs : 2 * n_pairs] = -decoy.down.weight[:, :n_pairs]
    decoy.down.weight[:, 2 * n_pairs :] = 0.0  # a neuron without partner
    stack.blocks = [decoy, *stack.blocks]
    return stack


LAUNDERED = one_after_the_other(with_decoy, neurons_permuted, edits.turn_stream)

DISGUISES = {
    disguise.name: disguise
    for disguise in (
        Disguise(
            "laundered",
            "tokens enciphered, residual stream rotated, neurons reordered, a decoy layer in front",
            LAUNDERED,
            is_enciphered=True,
        ),
        Disguise("split-in-two", "40% of the neurons split in two by noise on up that cancels", split_neurons(2)),
        Disguise("split-in-three", "40% of the neurons split in three by noise on up that cancels", split_neurons(3)),
        Disguise(
            "laundered-split",
            "40% of the neurons split in two, heads doubled, and all of the first disguise",
            one_after_the_other(split_neurons(2), heads_doubled, LAUNDERED),
            is_enciphered=True,
        ),
    )
}


# --- tokens


def reordered(stack: Stack, order: torch.Tensor) -> Stack:
    """Give token i the id ``order[i]``, in embedding and head."""
    before = order.argsort()
    stack.embedding = stack.embedding[before]
    stack.head = None if stack.head is None else stack.head[before]
    return stack


def enciphered(tokenizer: dict[str, Any], order: torch.Tensor, generator: torch.Generator) -> dict[str, Any]:
    """Return a tokenizer that reads text in a substitution cipher, with token i under the id ``order[i]``.

    ``tokenizer`` is the content of a ``tokenizer.json`` with a vocabulary by spelling. Special tokens exchange their
    spellings.
    """
    made = copy.deepcopy(tokenizer)
    vocabulary: dict[str, int] = made["model"]["vocab"]
    special = [token["content"] for token in made.get("added_tokens", ())]
    plain = [spelling for spelling in vocabulary if spelling not in special]
    characters = sorted(set("".join(plain)))
    shuffled = [characters[i] for i in torch.randperm(len(characters), generator=generator)]
    cipher = str.maketrans(dict(zip(characters, shuffled, strict=True)))
    exchanged = dict(zip(special, special[1:] + special[:1], strict=True))

    def spelt(spelling: str) -> str:
        return exchanged.get(spelling) or spelling.translate(cipher)

    made["model"]["vocab"] = {spelt(spelling): int(order[index]) for spelling, index in vocabulary.items()}
    if "merges" in made["model"]:
        # The two parts of a merge are written as a list or, in older files, separated by a space.
        made["model"]["merges"] = [
            " ".join(map(spelt, merge.split(" "))) if isinstance(merge, str) else [spelt(part) for part in merge]
            for merge in made["model"]["merges"]
        ]
    for token in made.get("added_tokens", ()):
        token["content"], token["id"] = exchanged[token["content"]], int(order[token["id"]])
    return made


# --- folders


@torch.no_grad()
def disguised(base: Path, disguise: Disguise, folder: Path, *, seed: int = 7) -> dict[str, float]:
    """Write a disguised copy of the model in ``base`` to ``folder``, in BF16.

    Returns:
        The change of the logits in float32 and as stored; see :data:`MOST_CHANGE`.

    Raises:
        ValueError: If the disguise changes the function.
    """
    model = load(base)
    generator = torch.Generator().manual_seed(seed)
    stack = disguise.edit(take_apart(model), generator)
    n_tokens = len(stack.embedding)
    order = torch.arange(n_tokens)
    if disguise.is_enciphered:
        order = torch.randperm(n_tokens, generator=generator)
        stack = reordered(stack, order)
    made = rebuilt(model, stack)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        index = getattr(model.config, name, None)
        if isinstance(index, int):
            setattr(made.config, name, int(order[index]))
    change = change_of_logits(model, made, order)
    save(made, base, folder)
    if disguise.is_enciphered and (folder / TOKENIZER).exists():
        tokenizer = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
        spelt = json.dumps(enciphered(tokenizer, order, generator), ensure_ascii=False)
        (folder / TOKENIZER).write_text(spelt, encoding="utf-8")
    stored_change = change_of_logits(model, load(folder), order)
    if change > MOST_CHANGE or stored_change > MOST_STORED_CHANGE:
        raise ValueError(f"{disguise.name} changes the logits by {change:.2g}, and by {stored_change:.2g} as stored")
    return {"change": change, "stored_change": stored_change}


@torch.no_grad()
def change_of_logits(model: PreTrainedModel, made: PreTrainedModel, order: torch.Tensor) -> float:
    """Return the root mean square change of the logits, in units of their standard deviation.

    In ``made``, token i of ``model`` has the id ``order[i]``.
    """
    ids = torch.randint(len(order), (2, 48), generator=torch.Generator().manual_seed(1))
    before = model(ids).logits.double()
    after = made(order[ids]).logits.double()[..., order]
    return float((after - before).square().mean().sqrt() / before.std())


def write_all(base: Path, out: Path, *, tell: Callable[[str], None] = print) -> dict[str, Path]:
    """Write all disguises of a model that do not exist yet; return their folders by name."""
    folders = {}
    for name, disguise in DISGUISES.items():
        folders[name] = out / name
        if not folders[name].exists():
            changes = disguised(base, disguise, folders[name])
            tell(f"{name}: {disguise.done}; " + ", ".join(f"{key} {value:.1e}" for key, value in changes.items()))
    return folders


def main() -> None:
    """Write all disguises of a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("base_folder", type=Path)
    arguments = parser.parse_args()
    write_all(arguments.base_folder, arguments.out)


if __name__ == "__main__":
    main()
