"""Strangers of architectures that give a channel's number a meaning, and what "their own order" says of them.

Sinusoidal positions added to the residual stream give channel i the frequency i; RWKV starts its mixing as a ramp over
the channels. Training may then put the same thing into the same number in models that share nothing else. For every
family, width and length of training a few models are trained on one text in one order, each from a seed of its own.
For every pair are kept

- ``with_own_order``: log10 p of the embeddings by all three kinds of matching, as for architectures with no such tie;
- ``without``: the same without channels in their own order;
- ``compared``: what a comparison at level layers says, layers and all;
- ``trace``, ``votes``: of the polar factor along the channels' own order, in deviations, and positive signs less
  negative ones;
- ``noise``, of one model of each kind: log10 p of a copy of it under noise of so many times its weights.

    python -m benchmarks.numbered_channels [--only xglm,gpt2] [--most-width 192] [--results FILE]

Models are kept under ``.trained-models``; all of them take an hour of one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import load_file

from benchmarks.calibration import fixed_matching
from benchmarks.zoo.build import cache_root, text_of
from mdir_hf import HomologyChecker
from mdir_hf.demo.text import BEGIN, END
from mdir_hf.demo.training import mean_loss, optimize, seeded_single_thread, train
from mdir_hf.method.embedding import EmbeddingTest
from mdir_hf.method.significance import LN10

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RECIPE = 1
"""Raise with every change of what is trained."""

RESULTS = Path(__file__).parent / "results" / "numbered-channels.jsonl"
VOCABULARY, SEQUENCE_LENGTH, BATCH_SIZE, RATE = 2048, 64, 8, 3e-3
LOG_ALPHA = math.log(1e-10)
EMBEDDINGS = ("model.embed_tokens.weight", "model.decoder.embed_tokens.weight", "model.shared.weight")
EMBEDDINGS += ("rwkv.embeddings.weight", "transformer.wte.weight", "lm_head.weight")


@dataclass(frozen=True)
class Kind:
    """Models that differ in their seed alone.

    Attributes:
        family: transformers' model type.
        width: Residual channels.
        steps: Of training.
        count: How many.
        n_layers: Layers.
    """

    family: str
    width: int
    steps: int
    count: int
    n_layers: int = 2

    def __str__(self) -> str:
        return f"{self.family}-{self.width}-{self.n_layers}-{self.steps}"


LOSSES = {
    "marian": (slice(None, -1), slice(1, None)),
    "m2m_100": (slice(None, SEQUENCE_LENGTH // 2), slice(SEQUENCE_LENGTH // 2, None)),
}
"""What is read, and what is to be written, in families whose classes do not move the labels by one: the same text one
token on, or the half of it that an encoder has not seen."""

FAMILIES = ("xglm", "marian", "m2m_100", "rwkv", "gpt2")

KINDS = (
    *(Kind(family, 64, steps, count) for family in FAMILIES for steps, count in ((0, 4), (400, 3), (1500, 2))),
    Kind("xglm", 192, 400, 5, n_layers=4),
    Kind("xglm", 192, 1500, 2, n_layers=4),
    Kind("gpt2", 192, 400, 2, n_layers=4),
    *(Kind(family, 192, 400, 2) for family in ("marian", "m2m_100", "rwkv")),
    Kind("xglm", 512, 400, 2),
    Kind("gpt2", 512, 400, 2),
)


def new_model(kind: Kind) -> PreTrainedModel:
    """A model at initialisation, drawn from torch's global generator, as its config class has it; no dropout."""
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    common: dict[str, Any] = {"vocab_size": VOCABULARY, "dropout": 0.0, "attention_dropout": 0.0, **special}
    common |= {"activation_dropout": 0.0, "max_position_embeddings": 128, "scale_embedding": True}
    n_heads = kind.width // 16
    decoder = {
        "d_model": kind.width,
        "decoder_layers": kind.n_layers,
        "decoder_attention_heads": n_heads,
        "decoder_ffn_dim": 4 * kind.width,
    }
    if kind.family == "xglm":
        shape = {"d_model": kind.width, "num_layers": kind.n_layers, "attention_heads": n_heads}
        return transformers.XGLMForCausalLM(transformers.XGLMConfig(**common, **shape, ffn_dim=4 * kind.width))
    if kind.family == "marian":
        return transformers.MarianForCausalLM(transformers.MarianConfig(**common, **decoder, is_decoder=True))
    if kind.family == "m2m_100":
        encoder = {name.replace("decoder", "encoder"): size for name, size in decoder.items() if name != "d_model"}
        no_drop = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "decoder_start_token_id": 1}
        return transformers.M2M100ForConditionalGeneration(
            transformers.M2M100Config(**common, **decoder, **encoder, **no_drop)
        )
    if kind.family == "rwkv":
        model = transformers.RwkvForCausalLM(
            transformers.RwkvConfig(
                vocab_size=VOCABULARY, hidden_size=kind.width, num_hidden_layers=kind.n_layers, context_length=128,
                bos_token_id=0, eos_token_id=1,
            )
        )  # fmt: skip
        with torch.no_grad():  # as in RWKV's own training; transformers does not draw them so
            model.get_input_embeddings().weight.uniform_(-1e-4, 1e-4)
        return model
    no_drop = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=kind.width, n_layer=kind.n_layers, n_head=n_heads, n_positions=128,
            bos_token_id=0, eos_token_id=1, **no_drop,
        )
    )  # fmt: skip


def trained(kind: Kind, seed: int) -> Path:
    """The folder of one model, trained if it is not there yet."""
    folder = cache_root() / f"numbered-channels-{RECIPE}" / f"{kind}-{seed}"
    if not folder.exists():
        _build(kind, seed, folder)
    return folder


def _build(kind: Kind, seed: int, folder: Path) -> None:
    text = text_of("bpe", VOCABULARY)
    learnt = text.learnt["code"]
    loss = None
    with seeded_single_thread(70_000 + seed):
        model = new_model(kind)
        if kind.steps and kind.family in LOSSES:
            optimize(model, _loss(model, learnt, kind.family), steps=kind.steps, learning_rate=RATE)
        elif kind.steps:
            train(
                model,
                learnt,
                steps=kind.steps,
                learning_rate=RATE,
                batch_size=BATCH_SIZE,
                sequence_length=SEQUENCE_LENGTH,
            )
        if kind.family not in LOSSES:
            loss = mean_loss(model, text.held_out["code"], sequence_length=SEQUENCE_LENGTH, n_sequences=32)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as building:
        made = Path(building) / folder.name
        model.save_pretrained(made)
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=text.tokenizer, bos_token=BEGIN, eos_token=END
        ).save_pretrained(made)
        (made / "training.json").write_text(json.dumps({"held_out_loss": loss}))
        made.rename(folder)


def _loss(model: PreTrainedModel, tokens: torch.Tensor, family: str) -> Callable[[], torch.Tensor]:
    order = torch.Generator().manual_seed(0)
    read, write = LOSSES[family]

    def loss() -> torch.Tensor:
        starts = torch.randint(tokens.numel() - SEQUENCE_LENGTH, (BATCH_SIZE,), generator=order)
        batch = tokens[starts[:, None] + torch.arange(SEQUENCE_LENGTH)]
        found: torch.Tensor = model(input_ids=batch[:, read].contiguous(), labels=batch[:, write].contiguous()).loss
        return found

    return loss


def embedding_of(folder: Path) -> torch.Tensor:
    """The embedding of a saved model, float32."""
    stored = load_file(folder / "model.safetensors")
    return stored[next(name for name in EMBEDDINGS if name in stored)].float()


def log10_p(left: torch.Tensor, right: torch.Tensor, *, own_order: bool) -> float:
    """log10 p of all rows, corrected for the tests of a comparison."""
    test = EmbeddingTest(log_alpha=LOG_ALPHA, own_order=own_order)
    test.screen(left, right, is_last=True)
    return round(test.log_p / LN10, 2)


def examine(kind: Kind) -> Iterator[dict[str, Any]]:
    """What is kept of every pair of a kind, then of copies of one of its models."""
    folders = [trained(kind, seed) for seed in range(kind.count)]
    about = {"family": kind.family, "width": kind.width, "layers": kind.n_layers, "steps": kind.steps}
    for (a, left), (b, right) in itertools.combinations(enumerate(folders), 2):
        first, second = embedding_of(left), embedding_of(right)
        report = HomologyChecker.from_pretrained(left, use_caches=False).compare(right, level="layers", progress=False)
        assert report.embedding is not None and report.embedding.placebo is not None
        yield {
            **about,
            "pair": [a, b],
            **fixed_matching(first, second),
            "with_own_order": log10_p(first, second, own_order=True),
            "without": log10_p(first, second, own_order=False),
            "compared": round(report.log10_p, 2),
            "not_accepted": report.log10_p_not_accepted,
            "verdict": report.verdict.value,
            "privileged_basis_z": [round(z, 1) for z in report.embedding.placebo.privileged_basis_z],
        }
    yield {**about, "noise": list(_copies(embedding_of(folders[0])))}


def _copies(rows: torch.Tensor) -> Iterator[dict[str, float]]:
    generator = torch.Generator().manual_seed(1)
    size = (rows - rows.mean(0)).square().mean().sqrt()
    for strength in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        copy = rows + strength * size * torch.randn(rows.shape, generator=generator)
        found = {own_order: log10_p(rows, copy, own_order=own_order) for own_order in (True, False)}
        yield {"strength": strength, "with_own_order": found[True], "without": found[False]}


def describe(rows: list[dict[str, Any]]) -> str:
    """One line for all pairs of a kind."""
    pairs, noise = [row for row in rows if "pair" in row], rows[-1]["noise"]
    one = rows[0]

    def strongest(column: str) -> float:
        return max((copy["strength"] for copy in noise if copy[column] < -10.0), default=0.0)

    return (
        f"{one['family']:8} {one['width']:4} wide {one['layers']} layers {one['steps']:5} steps {len(pairs):3} pairs: "
        f"largest -log10 p with own order {max(abs(row['with_own_order']) for row in pairs):6.2f}, "
        f"without {max(abs(row['without']) for row in pairs):4.2f}, "
        f"compared {max(abs(min(row['compared'], row['not_accepted'] or 0.0)) for row in pairs):4.2f}; "
        f"z of the trace {max(row['z'] for row in pairs):5.2f}; "
        f"a copy is found under noise of {strongest('with_own_order'):g}, without {strongest('without'):g}"
    )


def main() -> None:
    """Train what is missing, examine every pair, print a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(FAMILIES), help="families")
    parser.add_argument("--most-width", type=int, default=512)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    lines: list[str] = []
    for kind in KINDS:
        if kind.family in options.only.split(",") and kind.width <= options.most_width:
            rows = list(examine(kind))
            lines += [json.dumps(row) for row in rows]
            print(describe(rows), flush=True)
    options.results.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
