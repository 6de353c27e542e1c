"""Section on strangers of one recipe."""

from __future__ import annotations

from benchmarks.evidence.tables import Results
from benchmarks.runner import Row, table

OUTSIDE = (
    "Longer trainings were measured outside the project, on one H100, with an earlier version. "
    "Llamas trained on 157 million tokens and GPT-2s trained on 66 million, without common seeds, are `no_evidence` "
    "(trace over rank 0.129). The Llama keeps every channel number and half of the trace (0.479) if it is trained for "
    "as long again on manuals, at the full rate, until it has forgotten its code (loss 1.2 to 6.7)."
)


def strangers_section(results: Results) -> str:
    """Describe comparisons of models of 33 million parameters, which were trained in two runs."""
    first, second = results["strangers-at-scale"]
    pairs = [pair for run in (first, second) for pair in run["pairs"]]
    strangers = [pair for pair in pairs if not pair["related"]]
    relatives = [pair for pair in pairs if pair["related"]]
    framed = [pair for pair in strangers if pair["verdict"] != "no_evidence"]
    parts = [
        "## Strangers of one recipe",
        "`python -m benchmarks strangers-at-scale` trained models of 33 million parameters in two runs on one "
        f"{first['device']} each, with {first['share']:.0%} and {second['share']:.0%} of the planned tokens. They were "
        "compared on CPUs. They have width 512, 8 layers and a vocabulary of 8,192. `hidden-student` was trained from "
        "random weights towards all hidden states of `llama-0`: it is a stranger in the basis of `llama-0`. "
        "`pruned-distilled` is `llama-0` with half of its width, depth and MLP, distilled from the whole model, much "
        "as Llama-3.2-1B was made. `retokenised` has new embeddings for another tokenizer, and was trained with one "
        "rate for all weights. The second run trained its own `llama-0`, mixtures of four experts (which learnt little "
        "in the available time), `on-docstrings` from its `llama-0`, and `same-seed`, a model from the seed of "
        "`llama-0` that never saw its text.",
        f"**{_n_homologous(strangers)} of {len(strangers)} comparisons of strangers are `homologous`** (levels `auto` "
        f"and `layers`). {len(framed)} are `inconclusive` because only embeddings agree: {_pairs(framed)}. "
        f"{_n_homologous(relatives)} of {len(relatives)} comparisons of relatives are `homologous`.",
        table(
            "run | model | tokens | loss on held-out code",
            [
                [str(number), name, f"{model['tokens'] / 1e6:.1f} M", f"{model['held_out_loss']:.2f}"]
                for number, run in enumerate((first, second), start=1)
                for name, model in run["models"].items()
                if name in {name for pair in run["pairs"] if not pair["related"] for name in (pair["a"], pair["b"])}
            ],
        ),
        table(
            "run | descendant | of | tokens | loss | log10 p, `auto` | log10 p, `layers` | trace over rank | neurons",
            [[str(number), *row] for number, run in enumerate((first, second), start=1) for row in _relatives(run)],
        ),
        "*neurons*: the number of neurons, out of 64, that have their own number in the best pair of layers. The "
        "embeddings of `retokenised` are not significant after 55 million tokens; the paper's were after 3 billion.",
        OUTSIDE,
    ]
    return "\n\n".join(parts)


def _relatives(run: Row) -> list[list[str]]:
    pairs = [pair for pair in run["pairs"] if pair["related"]]
    return [_relative(run["models"], *(pair for pair in pairs if (pair["a"], pair["b"]) == of)) for of in _of(pairs)]


def _n_homologous(pairs: list[Row]) -> int:
    return sum(pair["verdict"] == "homologous" for pair in pairs)


def _of(pairs: list[Row]) -> dict[tuple[str, str], None]:
    return {(pair["a"], pair["b"]): None for pair in pairs}


def _pairs(pairs: list[Row]) -> str:
    return ", ".join(f"`{b}` against `{a}`" for a, b in _of(pairs))


def _relative(models: dict[str, Row], *of_pair: Row) -> list[str]:
    by_level = {pair["level"]: pair for pair in of_pair}
    layers, name = by_level["layers"], of_pair[0]["b"]
    model = models[name]
    p_values = [f"{by_level[level]['log10_p']:,.0f}" for level in ("auto", "layers")]
    trace, neurons = f"{layers['trace_over_rank']:.3f}", str(layers["neurons_own_number"])
    return [
        name, layers["a"], f"{model['tokens'] / 1e6:.1f} M", f"{model['held_out_loss']:.2f}", *p_values, trace, neurons,
    ]  # fmt: skip
