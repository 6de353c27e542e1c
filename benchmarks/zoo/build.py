"""Train the models of the zoo.

Every model is stored as it would be on the Hub: weights in BF16 (or quantised), config.json, tokenizer.json. Its
children are made from the saved files. Models are stored in ``.trained-models`` with the tests' models, or in
MDIR_HF_TEST_CACHE.
"""

from __future__ import annotations

import copy
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from benchmarks.folders import build_once
from benchmarks.zoo import edits, formats
from benchmarks.zoo.members import FAMILIES, MEMBERS, MIXTURES, Family, Model
from benchmarks.zoo.stack import Shape, new_model, take_apart
from mdir_hf.demo.training import (
    BEGIN,
    END,
    encode,
    mean_loss,
    optimize,
    read_corpus,
    seeded_single_thread,
    train,
    train_byte_level_bpe,
    train_unigram,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

RECIPE = 1
"""Version of the recipe; increase it with every change, so that older models are not reused."""

SEQUENCE_LENGTH = 64
BATCH_SIZE = 8
N_SAMPLED_TOKENS = 24
TEXTS = ("code", "prose")


@dataclass(frozen=True)
class Scale:
    """Sizes of the models and durations of their training.

    With 64 value rows, V alone is significant at 1e-10 for a layer with a normalised trace of 0.35: ln 64! + ln(10^10 ·
    16) = 231 against c²/2, c at most 64. Embeddings of 192 channels need 0.22.

    Attributes:
        name: Name of the folder.
        shape: Sizes of a Llama or Qwen3; other models have keys and values for every head, and ungated MLPs.
        pruned_width: Number of channels after width pruning if head sizes are independent of it.
        base_steps: Training steps of a base; all other durations are multiples of it.
        families: Families to build.
    """

    name: str
    shape: Shape
    pruned_width: int
    base_steps: int
    families: tuple[str, ...] = tuple(FAMILIES)

    def steps(self, share: float) -> int:
        """Return a multiple of the steps of a base, at least one."""
        return max(1, round(share * self.base_steps))


FULL = Scale("full", Shape(3072, 192, 512, 4, 6, 2, 32, False), 144, 300)
SHARES = {
    "continued": 2.5,
    "sft": 0.25,
    "domain": 0.25,
    "lora": 0.25,
    "rl": 0.1,
    "width-pruned": 0.15,
    "depth-pruned": 0.15,
    "depth-upscaled": 0.15,
    "moe-upcycled": 0.15,
    "retokenised": 0.5,
    "distilled": 0.8,
    "obfuscated": 0.05,
}
"""Training steps of each kind as a share of the base's."""


def cache_root() -> Path:
    """Return the folder of trained models."""
    return Path(os.environ.get("MDIR_HF_TEST_CACHE") or Path(__file__).parents[2] / ".trained-models")


def folder_of(scale: Scale) -> Path:
    """Return the folder of the models of a scale."""
    return cache_root() / f"zoo-{scale.name}-{RECIPE}"


def folder_of_model(model: Model, scale: Scale) -> Path:
    """Return the folder of a model, whether it exists or not."""
    return folder_of(scale) / model.family / model.member


def record_of(model: Model, scale: Scale) -> dict[str, Any]:
    """Return the training record of a built model: steps, losses, seconds."""
    record: dict[str, Any] = json.loads((folder_of_model(model, scale) / "zoo.json").read_text())
    return record


def built(model: Model, scale: Scale) -> Path:
    """Return the folder of a model, training it and its parents if missing."""

    def build(folder: Path) -> None:
        for parent in MEMBERS[model.member].parents or _teachers(model):
            built(Model(model.family, parent), scale)
        _Workshop(FAMILIES[model.family], scale).build(model.member, folder)

    return build_once(folder_of_model(model, scale), build)


def _teachers(model: Model) -> tuple[str, ...]:
    return ("base",) if model.member == "distilled" else ()


class Text:
    """The text of a scale under one tokenizer: training and held-out token ids, questions and answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        corpus = read_corpus()
        self.tokenizer = tokenizer
        bodies = {"code": corpus.code, "prose": corpus.prose}
        self.learnt = {kind: encode(tokenizer, bodies[kind].learnt) for kind in TEXTS}
        self.held_out = {kind: encode(tokenizer, bodies[kind].held_out) for kind in TEXTS}
        self.questions = _questions(tokenizer, "".join(corpus.code.learnt))

    @property
    def letters(self) -> torch.Tensor:
        """Share of letters in the text of each token, (vocabulary,)."""
        spelt = [self.tokenizer.decode([i], skip_special_tokens=False) for i in range(self.tokenizer.get_vocab_size())]
        return torch.tensor([sum(map(str.isalpha, text)) / max(1, len(text)) for text in spelt])


@lru_cache(maxsize=4)
def text_of(kind: str, vocabulary: int) -> Text:
    """Return the text under a ``bpe`` or ``unigram`` tokenizer of a given size; takes seconds on the first call."""
    corpus = read_corpus()
    learnt = [
        *corpus.code.learnt[:2],
        *corpus.prose.learnt[:3],
    ]  # half a million characters, on which a unigram model trains for 8 s
    learn = train_byte_level_bpe if kind == "bpe" else train_unigram
    return Text(learn(learnt, vocabulary_size=vocabulary))


def _questions(tokenizer: Tokenizer, code: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels, both (n, SEQUENCE_LENGTH): a function and the first line of its docstring."""
    functions = re.findall(r"def (\w+)\((.*?)\)[^\n]*:\n\s+r?\"\"\"([^\n\"]{10,})", code)
    end = tokenizer.token_to_id(END)
    ids, labels = [], []
    for name, arguments, answer in functions:
        question = tokenizer.encode(f"Question: what does {name}({arguments}) do?\nAnswer:").ids
        whole = [*question, *tokenizer.encode(f" {answer}").ids, end][:SEQUENCE_LENGTH]
        if len(whole) > len(question) + 2:
            padding = [end] * (SEQUENCE_LENGTH - len(whole))
            ids.append(whole + padding)
            labels.append([-100] * len(question) + whole[len(question) :] + [-100] * len(padding))
    return torch.tensor(ids), torch.tensor(labels)


class _Workshop:
    """Makes the members of one family, each from the folders of its parents."""

    def __init__(self, family: Family, scale: Scale) -> None:
        self.family, self.scale = family, scale
        self.text = text_of(family.tokenizer, scale.shape.vocabulary)
        self.other = next(kind for kind in TEXTS if kind != family.text)

    def build(self, member: str, folder: Path) -> None:
        started = time.process_time()
        with seeded_single_thread(1000 + sum(map(ord, member))):
            record = self._store(member, folder) if member in self.family.formats else self._train(member, folder)
        record |= {"member": member, "family": self.family.name, "cpu_s": time.process_time() - started}
        (folder / "zoo.json").write_text(json.dumps(record))

    def _train(self, member: str, folder: Path) -> dict[str, Any]:
        text = self.text
        if member == "retokenised":
            other_tokenizer = "unigram" if self.family.tokenizer == "bpe" else "bpe"
            text = text_of(other_tokenizer, self.scale.shape.vocabulary)
        model, losses, more = self._made(member, text)
        kind = self.other if member in ("domain", "lora", "other-data", "obfuscated") else self.family.text
        record = {
            "steps": len(losses),
            "first_loss": sum(losses[:5]) / max(1, len(losses[:5])) if losses else None,
            "last_loss": sum(losses[-5:]) / 5 if losses else None,
            "held_out_text": kind,
            "held_out_loss": mean_loss(model, text.held_out[kind], sequence_length=SEQUENCE_LENGTH),
            "n_parameters": sum(weight.numel() for weight in model.parameters()),
            **more,
        }
        _save(model, text.tokenizer, folder)
        return record

    def _made(self, member: str, text: Text) -> tuple[PreTrainedModel, list[float], dict[str, Any]]:
        """Return the model, the loss of each training step, and other notes."""
        generator = torch.Generator().manual_seed(7)
        seed = MEMBERS[member].seed
        if member == "distilled":
            return self._distilled(self._new(seed))
        if seed is not None:
            model = self._new(seed)
            kind = self.other if member == "other-data" else self.family.text
            return model, self._learn(model, text.learnt[kind], 1.0, rate=3e-3), {}
        parents = [self._parent(name) for name in MEMBERS[member].parents]
        model = parents[0]
        if member == "merge":
            return edits.average(*parents), [], {}
        if member == "noised":
            return edits.disturb(model, generator), [], {}
        if member == "sft":
            return model, self._fine_tuned_on_answers(model), {}
        if member == "lora":
            return self._lora(model)
        if member == "rl":
            return self._reinforced(model)
        share = SHARES[member]
        if member == "continued":
            return model, self._learn(model, text.learnt[self.family.text], share, rate=3e-3, order=2), {}
        if member == "domain":
            return model, self._learn(model, text.learnt[self.other], share, order=1), {}
        model = self._edited(member, model, text, generator)
        kind = self.other if member == "obfuscated" else self.family.text
        return model, self._learn(model, text.learnt[kind], share, order=3), {}

    def _edited(self, member: str, model: PreTrainedModel, text: Text, generator: torch.Generator) -> PreTrainedModel:
        stack = take_apart(model)
        n_layers = len(stack.blocks)
        if member == "width-pruned":
            own_heads = stack.n_kv_heads == stack.n_heads
            n_heads = stack.n_heads * 2 // 3 if own_heads else stack.n_heads
            width = n_heads * stack.head_dim if own_heads else self.scale.pruned_width
            n_neurons = stack.blocks[0].up.weight.shape[0] * 3 // 4
            stack = edits.cut_width(stack, n_channels=width, n_heads=n_heads, n_neurons=n_neurons)
        elif member == "depth-pruned":
            stack = edits.take_layers(stack, [i for i in range(n_layers) if i != n_layers // 2])
        elif member == "depth-upscaled":
            stack = edits.take_layers(stack, [*range(n_layers - 1), *range(1, n_layers)])
        elif member == "retokenised":
            stack = edits.draw_embeddings(stack, text.tokenizer.get_vocab_size(), generator)
        elif member == "obfuscated":
            stack = edits.obfuscate(stack, generator)
        elif member == "moe-upcycled":
            return edits.upcycle(stack, MIXTURES[self.family.name])
        return edits.rebuilt(stack)

    def _new(self, seed: int | None) -> PreTrainedModel:
        shape = self.scale.shape
        if self.family.architecture in ("gpt2", "gpt_neox"):
            sizes = {"n_kv_heads": shape.n_heads, "n_neurons": 4 * shape.width}
            shape = Shape(**{**asdict(shape), **sizes, "head_dim": shape.width // shape.n_heads})
        tokens = self.text.tokenizer.get_vocab_size()
        shape = Shape(**{**asdict(shape), "vocabulary": tokens, "tied": self.family.tied})
        # Families use different seeds, too.
        torch.manual_seed(100 * list(FAMILIES).index(self.family.name) + (seed or 0))
        return new_model(self.family.architecture, shape)

    def _parent(self, member: str) -> PreTrainedModel:
        from transformers import AutoModelForCausalLM

        folder = folder_of_model(Model(self.family.name, member), self.scale)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return model

    def _learn(
        self, model: PreTrainedModel, tokens: torch.Tensor, share: float, *, rate: float = 1e-3, order: int = 0
    ) -> list[float]:
        return train(
            model,
            tokens,
            steps=self.scale.steps(share),
            learning_rate=rate,
            batch=(BATCH_SIZE, SEQUENCE_LENGTH),
            order_seed=order,
        )

    def _optimized(
        self, member: str, model: torch.nn.Module, next_loss: Callable[[], torch.Tensor], rate: float
    ) -> list[float]:
        return optimize(model, next_loss, steps=self.scale.steps(SHARES[member]), learning_rate=rate)

    def _batches(self, tokens: torch.Tensor, order: int, length: int = SEQUENCE_LENGTH) -> Callable[[], torch.Tensor]:
        drawn = torch.Generator().manual_seed(order)

        def next_batch() -> torch.Tensor:
            starts = torch.randint(tokens.numel() - length, (BATCH_SIZE,), generator=drawn)
            return tokens[starts[:, None] + torch.arange(length)]

        return next_batch

    def _fine_tuned_on_answers(self, model: PreTrainedModel) -> list[float]:
        ids, labels = self.text.questions
        drawn = torch.Generator().manual_seed(4)

        def next_loss() -> torch.Tensor:
            rows = torch.randint(len(ids), (BATCH_SIZE,), generator=drawn)
            loss: torch.Tensor = model(input_ids=ids[rows], labels=labels[rows], use_cache=False).loss
            return loss

        return self._optimized("sft", model, next_loss, 1e-3)

    def _lora(self, model: PreTrainedModel) -> tuple[PreTrainedModel, list[float], dict[str, Any]]:
        import peft

        conv = self.family.architecture == "gpt2"
        config = peft.LoraConfig(
            r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM", fan_in_fan_out=conv
        )
        adapted = peft.get_peft_model(model, config)
        next_batch = self._batches(self.text.learnt[self.other], 5)

        def next_loss() -> torch.Tensor:
            batch = next_batch()
            loss: torch.Tensor = adapted(input_ids=batch, labels=batch, use_cache=False).loss
            return loss

        losses = self._optimized("lora", adapted, next_loss, 3e-3)
        merged: PreTrainedModel = adapted.merge_and_unload()
        return merged, losses, {}

    def _reinforced(self, model: PreTrainedModel) -> tuple[PreTrainedModel, list[float], dict[str, Any]]:
        """Train by REINFORCE with the batch's mean as baseline, on continuations of eight tokens of text."""
        next_prompt = self._batches(self.text.learnt[self.family.text], 6, length=8)
        letters, rewards = self.text.letters, []

        def next_loss() -> torch.Tensor:
            prompt = next_prompt()
            sampled = _sample(model, prompt, N_SAMPLED_TOKENS)
            reward = letters[sampled[:, prompt.shape[1] :]].mean(dim=1)
            rewards.append(float(reward.mean()))
            logits = model(input_ids=sampled[:, :-1], use_cache=False).logits[:, prompt.shape[1] - 1 :]
            chosen = sampled[:, prompt.shape[1] :, None]
            log_p = functional.log_softmax(logits.float(), -1).gather(-1, chosen)[..., 0].sum(1)
            return -((reward - reward.mean()) / (reward.std() + 1e-6) * log_p).mean()

        losses = self._optimized("rl", model, next_loss, 1e-3)
        n = max(1, len(rewards) // 5)
        return model, losses, {"first_reward": sum(rewards[:n]) / n, "last_reward": sum(rewards[-n:]) / n}

    def _distilled(self, student: PreTrainedModel) -> tuple[PreTrainedModel, list[float], dict[str, Any]]:
        teacher = self._parent("base").eval()
        next_batch = self._batches(self.text.learnt[self.family.text], 8)

        def next_loss() -> torch.Tensor:
            batch = next_batch()
            with torch.no_grad():
                target = functional.log_softmax(teacher(input_ids=batch, use_cache=False).logits.float(), -1)
            guess = functional.log_softmax(student(input_ids=batch, use_cache=False).logits.float(), -1)
            return functional.kl_div(guess, target, log_target=True, reduction="batchmean") / SEQUENCE_LENGTH

        return student, self._optimized("distilled", student, next_loss, 3e-3), {}

    def _store(self, kind: str, folder: Path) -> dict[str, Any]:
        """Write the base in another format."""
        base = folder_of_model(Model(self.family.name, "base"), self.scale)
        return {"steps": 0, **formats.store(base, kind, folder, beside=("zoo.json",))}


@torch.no_grad()
def _sample(model: PreTrainedModel, tokens: torch.Tensor, n_new: int) -> torch.Tensor:
    past, step = None, tokens
    for _ in range(n_new):
        out = model(input_ids=step, past_key_values=past, use_cache=True)
        past = out.past_key_values
        step = torch.multinomial(out.logits[:, -1].float().softmax(-1), 1)
        tokens = torch.cat([tokens, step], 1)
    return tokens


def _save(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    model = copy.deepcopy(model).to(torch.bfloat16)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(folder)
