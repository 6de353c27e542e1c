"""Train relatives of a real model on text shipped with Python, in minutes on one core each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from benchmarks.real.relatives import EDITS, edited, rebuilt
from benchmarks.zoo import edits
from benchmarks.zoo.stack import take_apart
from mdir_hf.demo.training import (
    encode,
    mean_loss,
    optimize,
    read_corpus,
    seeded_single_thread,
    train,
    train_byte_level_bpe,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

SEQUENCE_LENGTH, BATCH_SIZE = 128, 2
NEW_VOCABULARY = 8192
TEXT = "prose"
"""Training text: docstrings, because the smallest models were hardly trained on code."""


@dataclass(frozen=True)
class Trained:
    """A kind of model made by training.

    Attributes:
        name: Name of the model and its folder.
        done: Effect, as a phrase without full stop.
        make: Returns the model and the loss of each step, from the base, its tokenizer and the number of steps.
        steps: Number of training steps.
        is_related: Whether it contains weights of the base.
        is_attack: Whether its purpose is to evade detection.
        is_retokenised: Whether it uses the tokens of :func:`new_tokenizer`.
    """

    name: str
    done: str
    make: Callable[[PreTrainedModel, Tokenizer, int], tuple[PreTrainedModel, list[float]]]
    steps: int = 30
    is_related: bool = True
    is_attack: bool = False
    is_retokenised: bool = False


def tokens_of(tokenizer: Tokenizer, *, held_out: bool = False) -> torch.Tensor:
    """Return several hundred thousand token ids, (n,), or the held-out ones."""
    body = getattr(read_corpus(), TEXT)
    return encode(tokenizer, body.held_out if held_out else body.learnt[:6])


@lru_cache(maxsize=1)
def new_tokenizer() -> Tokenizer:
    """Return another tokenizer, learnt from the corpus alone."""
    corpus = read_corpus()
    return train_byte_level_bpe([*corpus.code.learnt[:4], *corpus.prose.learnt[:4]], vocabulary_size=NEW_VOCABULARY)


def held_out_loss(model: PreTrainedModel, tokenizer: Tokenizer) -> float:
    """Return nats per token on text that was not used for training here."""
    tokens = tokens_of(tokenizer, held_out=True)
    return mean_loss(model, tokens, sequence_length=SEQUENCE_LENGTH, n_sequences=8)


def learn(
    model: PreTrainedModel, tokenizer: Tokenizer, steps: int, rate: float, order: int = 0
) -> tuple[PreTrainedModel, list[float]]:
    """Train a model on text that comes with Python; return it, and the loss of each step."""
    losses = train(
        model,
        tokens_of(tokenizer),
        steps=steps,
        learning_rate=rate,
        batch=(BATCH_SIZE, SEQUENCE_LENGTH),
        order_seed=order,
    )
    return model, losses


def _full(rate: float) -> Callable[..., tuple[PreTrainedModel, list[float]]]:
    return lambda model, tokenizer, steps: learn(model, tokenizer, steps, rate)


def _lora(model: PreTrainedModel, tokenizer: Tokenizer, steps: int) -> tuple[PreTrainedModel, list[float]]:
    import peft

    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config)
    _, losses = learn(adapted, tokenizer, steps, 5e-4)
    return adapted.merge_and_unload(), losses


def _edited_and_tuned(*names: str, rate: float = 1e-4) -> Callable[..., tuple[PreTrainedModel, list[float]]]:
    def make(model: PreTrainedModel, tokenizer: Tokenizer, steps: int) -> tuple[PreTrainedModel, list[float]]:
        for name in names:
            model = edited(model, EDITS[name])
        return learn(model, tokenizer, steps, rate)

    return make


def _retokenised(model: PreTrainedModel, tokenizer: Tokenizer, steps: int) -> tuple[PreTrainedModel, list[float]]:
    """Draw embeddings for the new tokenizer and train them alone, then train everything for a third as long."""
    new = new_tokenizer()
    stack = take_apart(model)
    rms = stack.embedding.square().mean().sqrt()
    made = edits.draw_embeddings(stack, new.get_vocab_size(), torch.Generator().manual_seed(7))
    made.embedding *= rms / made.embedding.square().mean().sqrt()
    model = rebuilt(model, made)
    body = [weight for name, weight in model.named_parameters() if "embed_tokens" not in name]
    for weight in body:
        weight.requires_grad_(False)
    _, first = learn(model, new, steps, 3e-3)
    for weight in body:
        weight.requires_grad_(True)
    _, second = learn(model, new, max(1, steps // 3), 3e-4, order=1)
    return model, first + second


def _random(model: PreTrainedModel, seed: int = 1) -> PreTrainedModel:
    torch.manual_seed(seed)
    made: PreTrainedModel = type(model)(copy.deepcopy(model.config))
    return made


def _from_random(model: PreTrainedModel, tokenizer: Tokenizer, steps: int) -> tuple[PreTrainedModel, list[float]]:
    return learn(_random(model), tokenizer, steps, 1e-3)


def _distilled(model: PreTrainedModel, tokenizer: Tokenizer, steps: int) -> tuple[PreTrainedModel, list[float]]:
    return _taught(model, _random(model, seed=2), tokenizer, steps)


def _pruned_and_distilled(
    model: PreTrainedModel, tokenizer: Tokenizer, steps: int
) -> tuple[PreTrainedModel, list[float]]:
    """Keep the largest half of the channels, layers and neurons, then distil the whole model, as for Llama 3.2."""
    stack = take_apart(model)
    n_channels, n_neurons = stack.embedding.shape[1] // 2, stack.blocks[0].up.weight.shape[0] // 2
    halved = edits.cut_width(
        edits.take_layers(stack, range(0, len(stack.blocks), 2)),
        n_channels=n_channels,
        n_heads=stack.n_heads,
        n_neurons=n_neurons,
    )
    return _taught(model, rebuilt(model, halved), tokenizer, steps)


def _taught(
    teacher: PreTrainedModel, student: PreTrainedModel, tokenizer: Tokenizer, steps: int
) -> tuple[PreTrainedModel, list[float]]:
    """Train the student towards the teacher's next-token distributions; return it, and the loss of each step."""
    teacher.eval()
    tokens, drawn = tokens_of(tokenizer), torch.Generator().manual_seed(8)

    def next_loss() -> torch.Tensor:
        starts = torch.randint(tokens.numel() - SEQUENCE_LENGTH, (BATCH_SIZE,), generator=drawn)
        batch = tokens[starts[:, None] + torch.arange(SEQUENCE_LENGTH)]
        with torch.no_grad():
            target = functional.log_softmax(teacher(input_ids=batch, use_cache=False).logits, -1)
        guess = functional.log_softmax(student(input_ids=batch, use_cache=False).logits, -1)
        return functional.kl_div(guess, target, log_target=True, reduction="batchmean") / SEQUENCE_LENGTH

    return student, optimize(student, next_loss, steps=steps, learning_rate=1e-3)


def _merged(model: PreTrainedModel, tokenizer: Tokenizer, steps: int) -> tuple[PreTrainedModel, list[float]]:
    tuned, losses = learn(copy.deepcopy(model), tokenizer, steps, 1e-4, order=3)
    return edits.average(model, tuned), losses


TRAINED = {
    how.name: how
    for how in (
        Trained("lora", "LoRA of rank 16 on every linear map, peak rate 5e-4, merged", _lora),
        Trained("tuned-1e-5", "fine-tuned in full, peak rate 1e-5", _full(1e-5)),
        Trained("tuned-1e-4", "fine-tuned in full, peak rate 1e-4", _full(1e-4)),
        Trained("continued-1e-3", "pretraining continued, peak rate 1e-3", _full(1e-3), steps=60),
        Trained("continued-3e-3", "pretraining continued, peak rate 3e-3: it forgets", _full(3e-3), steps=60),
        Trained("merged", "the mean of the base and a fine-tune", _merged),
        Trained(
            "retokenised", "another tokenizer, its embeddings trained", _retokenised, steps=60, is_retokenised=True
        ),
        Trained("hidden-tuned", "hidden, then fine-tuned", _edited_and_tuned("hidden"), is_attack=True),
        Trained(
            "half-width-tuned", "half of the channels cut, then trained", _edited_and_tuned("half-width", rate=3e-4)
        ),
        Trained("distilled", "a student of this model, from random weights", _distilled, is_related=False),
        Trained(
            "pruned-distilled",
            "half of the channels, layers and neurons kept, then distilled from the whole model, peak rate 1e-3",
            _pruned_and_distilled,
            steps=100,
        ),
        Trained("from-random", "the same shape, trained from random weights", _from_random, is_related=False),
        Trained("random", "the same shape, random weights", lambda model, *_: (_random(model), []), 0, False),
    )
}


def trained(base: PreTrainedModel, tokenizer_file: Path, how: Trained) -> tuple[PreTrainedModel, dict[str, object]]:
    """Return a trained model, and a description of its training."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    with torch.enable_grad(), seeded_single_thread(11):  # the caller may have disabled gradients
        model, losses = how.make(base, tokenizer, how.steps)
        read_as = new_tokenizer() if how.is_retokenised else tokenizer
        loss = held_out_loss(model, read_as)
    record: dict[str, object] = {"steps": len(losses), "held_out_loss": round(loss, 4)}
    if losses:
        record |= {"first_loss": round(losses[0], 4), "last_loss": round(sum(losses[-5:]) / len(losses[-5:]), 4)}
    return model, record
