"""Compare unrelated models that are as similar as possible and differ only in their seeds.

    python -m benchmarks.strangers [--steps 1500]
    python -m benchmarks.strangers --size 33M --device cuda    # benchmarks/at_scale.py; about ten minutes on an H100

Two models of each of three recipes (Llama; GPT-2 with learned positions; XGLM with sinusoidal positions) are trained on
one core for the given number of steps, and each is trained for a tenth longer as its own relative. Generated text,
losses and the statistics of all pairs go to ``benchmarks/results/strangers.json``; weights are not stored.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from benchmarks.at_scale import PARTS, SIZES, Run, train_and_compare
from benchmarks.at_scale import RESULTS as AT_SCALE
from mdir_hf import HomologyReport, compare
from mdir_hf.demo.training import encode, mean_loss, read_corpus, seeded_single_thread, train, train_byte_level_bpe

RESULTS = Path(__file__).parent / "results" / "strangers.json"
VOCABULARY, WIDTH, LAYERS, HEADS, MLP = 2_048, 192, 4, 6, 768
BATCH, LENGTH = 8, 96
LEARNING_RATE = 2e-3


def llama() -> Any:
    """Return a Llama: rotary positions, gated MLP, RMS norms."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            num_key_value_heads=2, intermediate_size=512, tie_word_embeddings=True, max_position_embeddings=256,
        )
    )  # fmt: skip


def gpt2() -> Any:
    """Learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=256, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


def xglm() -> Any:
    """Return an XGLM: sinusoidal positions give channel numbers a meaning, so that they are not evidence."""
    from transformers import XGLMConfig, XGLMForCausalLM

    return XGLMForCausalLM(
        XGLMConfig(
            vocab_size=VOCABULARY, d_model=WIDTH, num_layers=LAYERS, attention_heads=HEADS, ffn_dim=MLP, dropout=0.0,
            attention_dropout=0.0, layerdrop=0.0, max_position_embeddings=256,
        )
    )  # fmt: skip


RECIPES: dict[str, Callable[[], Any]] = {"llama": llama, "gpt2": gpt2, "xglm": xglm}


def statistics(report: HomologyReport) -> dict[str, Any]:
    """Results of each test: log10 p, trace over rank, channels and neurons with equal numbers, pairs of layers."""
    matrix, neurons, layers = report.embedding, report.neurons, report.layers
    return {
        "verdict": report.verdict.value,
        "log10_p": report.log10_p,
        "trace_over_rank": None if matrix is None or matrix.trace is None else matrix.trace / matrix.rank,
        "neurons_own_number": None if neurons is None else max(map(max, neurons.own_number)),
        "neurons_tested": None if neurons is None else neurons.tested,
        "layers_log10_p": None if layers is None else min((match.log10_p for match in layers.matches), default=0.0),
        "layers_matched": None if layers is None else len(layers.matches),
    }


def main() -> None:
    """Train and compare models, and write and print the results."""
    from transformers.utils import logging

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_500, help="of each of six small models")
    parser.add_argument("--size", choices=["small", *SIZES], default="small")
    parser.add_argument("--device", default="cpu", help="of the training, unless the size is small")
    parser.add_argument("--share", type=float, default=1.0, help="share of the tokens, unless the size is small")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no training later, unless size is small")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="only these, unless the size is small")
    parser.add_argument("--results", type=Path, help="another JSON file, unless the size is small")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        if options.size == "small":
            compare_small(options.steps, Path(place))
        else:
            run = Run(options.size, options.device, options.share, options.seconds, options.only)
            train_and_compare(run, Path(place), options.results or AT_SCALE)


def compare_small(steps: int, place: Path) -> None:
    """Train six small models, compare them, and write and print the results."""
    corpus = read_corpus()
    tokenizer = train_byte_level_bpe([*corpus.code.learnt[:2], *corpus.prose.learnt[:3]], vocabulary_size=VOCABULARY)
    learnt, held_out = (encode(tokenizer, texts) for texts in (corpus.prose.learnt, corpus.prose.held_out))
    rows = []
    for number, (recipe, make) in enumerate(RECIPES.items()):
        # No two models share a seed: even with different recipes, they would start with the same numbers and be
        # found.
        for seed in (2 * number, 2 * number + 1):
            rows.append(trained(recipe, make, seed, steps, learnt, held_out, tokenizer, place))
            print(rows[-1], flush=True)
    pairs = []
    for a, b in combinations(range(len(rows)), 2):
        pairs.append(compared(rows[a]["name"], rows[b]["name"], place, related=False))
    pairs += [compared(row["name"], f"{row['name']}-on", place, related=True) for row in rows]
    RESULTS.write_text(json.dumps([{"steps": steps, "models": rows, "pairs": pairs}], indent=1) + "\n")
    for related in (False, True):
        of_kind = [pair for pair in pairs if pair["related"] is related]
        verdicts = [pair["verdict"] for pair in of_kind]
        print(
            "relatives" if related else "strangers",
            len(of_kind),
            {verdict: verdicts.count(verdict) for verdict in set(verdicts)},
        )
        for name in ("log10_p", "trace_over_rank", "neurons_own_number", "layers_log10_p"):
            values = [pair[name] for pair in of_kind if pair[name] is not None]
            print(f"  {name}: {min(values, default=math.nan):.3g} to {max(values, default=math.nan):.3g}")


def trained(
    recipe: str,
    make: Callable[[], Any],
    seed: int,
    steps: int,
    learnt: torch.Tensor,
    held_out: torch.Tensor,
    tokenizer: Any,
    place: Path,
) -> dict[str, Any]:
    """Train a model and a continuation of it, save both, and return loss and generated text."""
    name = f"{recipe}-{seed}"
    with seeded_single_thread(seed):
        model = make()
        how = {"batch": (BATCH, LENGTH), "learning_rate": LEARNING_RATE}
        losses = train(model, learnt, steps=steps, **how)
        loss = mean_loss(model, held_out, sequence_length=LENGTH)
        prompt = encode(tokenizer, ["The "])[None]
        written = model.generate(prompt, max_new_tokens=60, do_sample=True, top_k=20, pad_token_id=0)
        save(model, tokenizer, place / name)
        train(model, learnt, steps=max(5, steps // 10), order_seed=1, **{**how, "learning_rate": LEARNING_RATE / 4})
        save(model, tokenizer, place / f"{name}-on")
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "name": name,
        "parameters": n_parameters,
        "tokens": steps * BATCH * LENGTH,
        "first_loss": losses[0],
        "held_out_loss": loss,
        "writes": tokenizer.decode(written[0].tolist()),
    }


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model in the layout of the Hub."""
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def compared(a: str, b: str, place: Path, *, related: bool) -> dict[str, Any]:
    """Compare two models down to their layers."""
    report = compare(str(place / a), str(place / b), level="layers", progress=False, use_caches=False)
    return {"a": a, "b": b, "related": related, **statistics(report)}


if __name__ == "__main__":
    main()
