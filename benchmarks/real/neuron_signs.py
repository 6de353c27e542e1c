"""A test that shared axes cannot move: the signs of gated neurons.

    python -m benchmarks.real.neuron_signs
    python -m benchmarks.real.neuron_signs --spread    # of strangers, the law of z over every pair of layers

In an MLP ``down(act(gate x) * (up x))`` a change of sign of one row of ``up`` and of the same column of ``down``
changes nothing: not the function, and not the law of the trained weights, as long as weights are drawn symmetrically
and the optimiser is odd in the gradient (SGD, Adam with or without decay, Lion, Muon, Adafactor). So the sign of each
neuron of an independently trained model is a fair coin, independent of its gate, of all other neurons, and of the
embeddings. Match the neurons of two models by their *gates* alone, however well or badly; then count how many matched
rows of ``up`` point the same way. Between independent models the count is binomial, exactly: whatever both learnt from
language, and however their axes stand out. No rotation invariance is assumed.

Whoever flips signs on purpose is not found by this test, and shared initialisation is shared ancestry here, too.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from benchmarks.real.sources import UnavailableError
from benchmarks.real.workshop import LARGE, MIDDLE, SMALL, Model, built, common_ids
from benchmarks.zoo.run import read_lines

RESULTS = Path(__file__).parents[1] / "results" / "real-neuron-signs.jsonl"
SPREADS = RESULTS.with_name("real-neuron-signs-spread.jsonl")
N_TOKENS, N_NEURONS = 20_000, 1024

PAIRS = (
    *((Model(SMALL), Model(SMALL, member)) for member in (
        "permuted", "signed", "rotated", "hidden", "noise-1", "noise-3", "noise-6", "half-depth", "half-width",
        "upscaled", "new-embeddings-permuted", "rescaled", "split-neurons", "outliers", "noisy-axes",
    )),
    (Model(MIDDLE), Model(LARGE)),
    (Model(SMALL), Model(MIDDLE)),
    (Model(SMALL), Model(LARGE)),
)  # fmt: skip


@dataclass(frozen=True)
class Votes:
    """How two layers vote.

    Attributes:
        agreeing: Matched neurons whose rows of ``up`` point the same way.
        n: Matched neurons.
    """

    agreeing: int
    n: int

    @property
    def log10_p(self) -> float:
        """log10 of a bound on the probability that so many fair coins agree, or more: ``exp(-n KL(share, 1/2))``."""
        share = self.agreeing / self.n if self.n else 0.5
        if share <= 0.5:
            return 0.0
        apart = math.log(2.0) + sum(x * math.log(x) for x in (share, 1.0 - share) if x)
        return -self.n * apart / math.log(10.0)

    @property
    def z(self) -> float:
        """Standard deviations above half."""
        return (2.0 * self.agreeing - self.n) / math.sqrt(self.n) if self.n else 0.0


class Weights:
    """What the test reads of a model: an embedding, and gate and up of a layer with the gain before them folded in."""

    def __init__(self, folder: Path) -> None:
        self._file = safe_open(folder / "model.safetensors", "pt")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.n_layers = int(config["num_hidden_layers"])
        self.folder = folder

    def embedding(self) -> torch.Tensor:
        """(vocabulary, n), float32."""
        return self._file.get_tensor("model.embed_tokens.weight").float()

    def neurons(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Gate and up of a layer, (neurons, n) each, float32."""
        at = f"model.layers.{layer}"
        gain = self._file.get_tensor(f"{at}.post_attention_layernorm.weight").float()
        gate, up = (self._file.get_tensor(f"{at}.mlp.{part}_proj.weight").float() for part in ("gate", "up"))
        return gate * gain, up * gain


def fitted_map(a: Weights, b: Weights, n_tokens: int = N_TOKENS) -> torch.Tensor:
    """The polar factor between the embeddings on some common tokens, (n_b, n_a): no sign of a neuron is in it."""
    ids, theirs = common_ids(a.folder, b.folder)
    some = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))[:n_tokens]
    x, y = a.embedding()[ids[some]], b.embedding()[theirs[some]]
    rows = [each - each.mean(0) for each in (x, y)]
    x, y = (each / each.norm(dim=1, keepdim=True).clamp(min=1e-12) for each in rows)
    u, _, v = torch.linalg.svd(y.T @ x, full_matrices=False)
    return u @ v


def vote(
    a: tuple[torch.Tensor, torch.Tensor],
    b: tuple[torch.Tensor, torch.Tensor],
    outer: torch.Tensor | None,
    *,
    n_neurons: int = N_NEURONS,
) -> Votes:
    """Match neurons by their gates, each with its nearest where that is mutual, and let their ups vote.

    Args:
        a: Gate and up of a layer, (neurons, n_a) each.
        b: Gate and up of another, (neurons, n_b) each.
        outer: What carries b's residual stream to a's, (n_b, n_a); None: they have the same.
        n_neurons: Neurons of ``a`` at most, the first ones: their order says nothing.
    """
    gate, up = (part[:n_neurons] for part in a)
    other_gate, other_up = (part if outer is None else part @ outer for part in b)
    near = torch.nn.functional.normalize(gate, dim=1) @ torch.nn.functional.normalize(other_gate, dim=1).T
    best, back = near.argmax(dim=1), near.argmax(dim=0)
    mine = torch.arange(len(best))
    mutual = back[best] == mine
    agreement = (up[mutual] * other_up[best[mutual]]).sum(1)
    return Votes(int((agreement > 0).sum()), int((agreement != 0).sum()))


def compare(a: Model, b: Model, *, n_pairs: int = 8) -> dict[str, object]:
    """Vote in some pairs of layers that were fixed in advance: at equal depth, and a few off it.

    Returns:
        A line of ``real-neuron-signs.jsonl``: p of all layers at equal depth together, under the fitted map and, where
        the widths are equal, under none; and z of every pair of layers.
    """
    one, other = (Weights(built(model)) for model in (a, b))
    depth = np.linspace(0.0, 1.0, n_pairs)
    at = [(round(t * (one.n_layers - 1)), round(t * (other.n_layers - 1))) for t in depth]
    maps: dict[str, torch.Tensor | None] = {"fitted": fitted_map(one, other)}
    if one.embedding().shape[1] == other.embedding().shape[1]:
        maps["none"] = None
    row: dict[str, object] = {"a": a.name, "b": b.name, "layers": at}
    for name, outer in maps.items():
        votes = [vote(one.neurons(i), other.neurons(j), outer) for i, j in at]
        total = Votes(sum(each.agreeing for each in votes), sum(each.n for each in votes))
        row[name] = {
            "log10_p": round(total.log10_p, 2),
            "agreeing": total.agreeing,
            "n": total.n,
            "z": [round(each.z, 2) for each in votes],
        }
    return row


def spread(a: Model, b: Model, *, n_neurons: int = 512) -> dict[str, object]:
    """Mean and deviation of z over every pair of layers of two strangers: 0 and 1 where signs are fair coins."""
    one, other = (Weights(built(model)) for model in (a, b))
    outer = fitted_map(one, other)
    # Of the other model as many neurons for each layer: what is tested are the coins, not the power.
    theirs = [tuple(part[: 2 * n_neurons] @ outer for part in other.neurons(j)) for j in range(other.n_layers)]
    z, gates = [], []
    for i in range(one.n_layers):
        mine = one.neurons(i)
        for layer in theirs:
            votes = vote(mine, layer, None, n_neurons=n_neurons)
            z.append(votes.z)
            gates.append(votes.n)
    return {
        "a": a.name,
        "b": b.name,
        "layer pairs": len(z),
        "matched neurons": sum(gates),
        "mean z": round(float(np.mean(z)), 3),
        "sd of z": round(float(np.std(z)), 3),
        "largest z": round(float(np.max(z)), 2),
    }


def main() -> None:
    """Print a line for each pair, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--spread", action="store_true", help="of the strangers every pair of layers, for the law of z")
    arguments = parser.parse_args()
    if arguments.spread:
        lines: list[str] = []
        for a, b in PAIRS[-3:]:
            lines.append(json.dumps(spread(a, b)))
            print(lines[-1], flush=True)
        SPREADS.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return
    known = {(row["a"], row["b"]) for row in read_lines(arguments.results)}
    for a, b in PAIRS:
        if (a.name, b.name) in known:
            continue
        try:
            row = compare(a, b)
        except UnavailableError as exc:
            print(f"passed over {a.name} | {b.name}: {exc}", flush=True)
            continue
        with arguments.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        told = {
            key: f"{row[key]['agreeing']}/{row[key]['n']} {row[key]['log10_p']}"
            for key in ("fitted", "none")
            if key in row
        }
        print(a.name, b.name, told, flush=True)


if __name__ == "__main__":
    main()
