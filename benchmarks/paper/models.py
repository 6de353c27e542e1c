"""Small models for the paper's experiments, trained on first use and stored."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.folders import build_once
from benchmarks.zoo import build as zoo
from benchmarks.zoo.build import Text, text_of
from benchmarks.zoo.edits import cut_width, rebuilt, take_layers
from benchmarks.zoo.stack import Shape, new_model, take_apart
from mdir_hf.demo.training import BEGIN, END, mean_loss, seeded_single_thread, train, train_byte_level_bpe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RECIPE = 4
"""Version of the models; increase it with every change."""

SEQUENCE_LENGTH, BATCH_SIZE = 64, 8
TOKENS_PER_STEP = SEQUENCE_LENGTH * BATCH_SIZE


QWEN3 = Shape(2048, 160, 416, 8, 6, 3, 32, True)
"""Architecture of the paper's ablation: Qwen3, with eight layers of 96 value rows."""

STEPS, SHORT_STEPS = 300, 60
"""Training steps of a base, and after layers were cut or copied."""

RETOKENISED_STEPS = (25, 50, 100, 150, 200, 300, 400, 600)
"""Steps at which embeddings for another tokenizer are measured; the last is the end of training."""

PRUNED_WIDTH = 96
SMALL, SMALL_STEPS = Shape(1024, 128, 384, 4, 8, 8, 16, True), 2500
"""A smaller model that can be trained longer, for new embeddings with a frozen body, and the training steps of its
base, with batches twice as large."""

EMBEDDED_STEPS = (50, 250, 500, 1000, 2000, 4000)
"""Steps at which its new embeddings are measured; the last is the end of training."""

PAPER_WIDTH = 896
"""Width of Qwen2.5-0.5B; the paper replaces its embeddings."""

# Bases: seed of the initialisation, text.
BASES = {
    "seed2-code": (2, "code"),
    "seed2-prose": (2, "prose"),
    "seed3-code": (3, "code"),
    "seed3-prose": (3, "prose"),
}
BASE = "seed2-code"


def upscaled_layers(n_layers: int) -> tuple[int, ...]:
    """Return layers by SOLAR's recipe: the first three quarters, then the last three quarters."""
    n_copied = 3 * n_layers // 4
    return (*range(n_copied), *range(n_layers - n_copied, n_layers))


def pruned_layers(n_layers: int) -> tuple[int, ...]:
    """Return the first two, the last two and every second layer in between, similar to the layers of Llama-3.2-1B."""
    return (0, 1, *range(3, n_layers - 2, 2), n_layers - 2, n_layers - 1)


def text(kind: str = "bpe") -> Text:
    """Return token ids under the byte-level BPE of the bases, or under a ``unigram`` tokenizer."""
    return text_of(kind, QWEN3.vocabulary)


@lru_cache(maxsize=2)
def small_text(n_tokens: int, *, is_other: bool) -> Text:
    """Return the text for a byte-level BPE of a given size, learned from the first or other parts of the code."""
    corpus = zoo.read_corpus()
    learnt = [*corpus.code.learnt[6:10], *corpus.prose.learnt[:1]] if is_other else corpus.code.learnt[:4]
    return Text(train_byte_level_bpe(learnt, vocabulary_size=n_tokens))


def folder_of(name: str) -> Path:
    """Return the folder of a model, whether it exists or not."""
    root = os.environ.get("MDIR_HF_TEST_CACHE") or Path(__file__).parents[2] / ".trained-models"
    return Path(root) / f"paper-full-{RECIPE}" / name


def built(name: str) -> Path:
    """Return the folder of a model, training it if necessary.

    Args:
        name: One of ``BASES``, ``fine-tuned``, ``upscaled``, ``pruned``, ``small``, or ``retokenised`` or ``frozen``
            with ``-STEP``.
    """
    training, _, step = name.rpartition("-")
    makers = {"retokenised": _retokenise, "frozen": _embed}
    if training in makers:
        return build_once(folder_of(training), makers[training]) / step
    return build_once(folder_of(name), _train_small if name == "small" else partial(_build, name))


def load(folder: Path) -> PreTrainedModel:
    """Load a model in float32."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def losses_of(name: str) -> dict[str, float]:
    """Return the first, last and held-out loss of a model's training, in nats per token."""
    losses: dict[str, float] = json.loads((built(name) / "training.json").read_text())
    return losses


def save(model: PreTrainedModel, learnt: Text, folder: Path, losses: Sequence[float], kind: str) -> None:
    """Store a model in BF16 with its tokenizer."""
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    first, last = (sum(part) / len(part) if part else float("nan") for part in (losses[:5], losses[-5:]))
    held_out = mean_loss(model, learnt.held_out[kind], sequence_length=SEQUENCE_LENGTH)
    # Copies the values, because the model may be trained further.
    state = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    copied = type(model)(model.config).to(torch.bfloat16)
    copied.load_state_dict(state)
    copied.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=learnt.tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(folder)
    (folder / "training.json").write_text(json.dumps({"first": first, "last": last, "held_out": held_out}))


def _build(name: str, folder: Path) -> None:
    model, losses = _trained(name)
    save(model, text(), folder, losses, "prose" if name == "fine-tuned" or name.endswith("prose") else "code")


def _trained(name: str) -> tuple[PreTrainedModel, list[float]]:
    learnt = text().learnt
    if name in BASES:
        seed, kind = BASES[name]
        with seeded_single_thread(seed):
            model = new_model("qwen3", QWEN3)
            return model, _train(model, learnt[kind], STEPS, 3e-3)
    model = load(built(BASE))
    with seeded_single_thread(0):
        if name == "fine-tuned":
            return model, _train(model, learnt["prose"], SHORT_STEPS, 1e-3, order=1)
        stack = take_apart(model)
        if name == "upscaled":
            stack = take_layers(stack, upscaled_layers(len(stack.blocks)))
        elif name == "pruned":
            stack = take_layers(stack, pruned_layers(len(stack.blocks)))
            neurons = stack.blocks[0].up.weight.shape[0]
            stack = cut_width(stack, n_channels=PRUNED_WIDTH, n_heads=stack.n_heads, n_neurons=neurons * 3 // 4)
        else:
            raise ValueError(f"no recipe for {name!r}")
        model = rebuilt(stack)
        return model, _train(model, learnt["code"], SHORT_STEPS, 1e-3, order=1)


def _retokenise(folder: Path) -> None:
    """Give the base new embeddings for another tokenizer, and store it at every step in the table, in a folder each.

    The paper starts with zeros, which get a gradient through Qwen2's biases. A model without biases would stay at
    zero, so these embeddings are drawn at a thousandth of the usual size. All weights are trained at one peak rate.
    """
    learnt = text("unigram")
    with seeded_single_thread(5):
        base = load(built(BASE))
        stack = take_apart(base)
        vocabulary = learnt.tokenizer.get_vocab_size()
        model = new_model("qwen3", replace(QWEN3, vocabulary=vocabulary))
        state = dict(base.state_dict())
        drawn = 1e-3 * float(stack.embedding.std()) * torch.randn(vocabulary, QWEN3.width)
        state["model.embed_tokens.weight"] = state["lm_head.weight"] = drawn
        model.load_state_dict(state)
        step = 0

        def keep() -> None:
            nonlocal step
            step += 1
            if step in RETOKENISED_STEPS:
                save(model, learnt, folder / str(step), [], "code")
                model.train()

        _train(model, learnt.learnt["code"], max(RETOKENISED_STEPS), 1e-3, order=2, on_step=keep)


def _train_small(folder: Path) -> None:
    """Train the small base with its embedding and final norm scaled to the paper's width.

    A normalised state of n channels has length sqrt(n), and logits need the same range at any width. At 64 channels, an
    embedding with the usual initialisation must grow one direction for token frequency, ten times as long as any other,
    which hides the rest from the body. At 896 channels this is not necessary, so rows and states get the lengths that
    they have at that width.
    """
    learnt = small_text(SMALL.vocabulary, is_other=False)
    with seeded_single_thread(2):
        model = new_model("qwen3", SMALL)
        with torch.no_grad():
            for weight in (model.get_input_embeddings().weight, model.get_parameter("model.norm.weight")):
                weight.mul_(math.sqrt(PAPER_WIDTH / SMALL.width))
        losses = _train(model, learnt.learnt["code"], SMALL_STEPS, 3e-3, batch_size=2 * BATCH_SIZE)
        save(model, learnt, folder, losses, "code")


def _embed(folder: Path) -> None:
    """Learn new embeddings for another tokenizer for the small base, with a frozen body.

    As in the paper, there is no warm-up, and the rate falls quadratically to 0. The new embeddings use weight decay,
    because with Adam a rare row takes a full step whenever it has a gradient, and would drift away.
    """
    learnt = small_text(SMALL.vocabulary, is_other=True)
    with seeded_single_thread(5):
        model = load(built("small"))
        embedding = model.get_input_embeddings().weight
        with torch.no_grad():
            embedding.copy_(1e-3 * embedding.std() * torch.randn(embedding.shape))
        for weight in model.parameters():
            weight.requires_grad_(weight is embedding)
        optimizer = torch.optim.AdamW([embedding], lr=1e-2, weight_decay=0.3, betas=(0.9, 0.95), fused=True)
        n_steps, tokens = max(EMBEDDED_STEPS), learnt.learnt["code"]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 - step / n_steps) ** 2)
        order = torch.Generator().manual_seed(3)
        model.train()
        for step in range(1, n_steps + 1):
            starts = torch.randint(tokens.numel() - SEQUENCE_LENGTH, (2 * BATCH_SIZE,), generator=order)
            batch = tokens[starts[:, None] + torch.arange(SEQUENCE_LENGTH)]
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(model(input_ids=batch, labels=batch, use_cache=False).loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step in EMBEDDED_STEPS:
                save(model, learnt, folder / str(step), [], "code")
                model.train()


def _train(
    model: PreTrainedModel,
    tokens: torch.Tensor,
    steps: int,
    rate: float,
    *,
    order: int = 0,
    batch_size: int = BATCH_SIZE,
    on_step=None,
) -> list[float]:
    return train(
        model,
        tokens,
        steps=steps,
        learning_rate=rate,
        batch=(batch_size, SEQUENCE_LENGTH),
        order_seed=order,
        on_step=on_step,
    )
