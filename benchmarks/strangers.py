"""Train models of 33 million parameters on a GPU, and compare strangers and relatives among them.

The text is the source code of installed Python packages, and their docstrings. A Llama, a GPT-2 (learned positions), an
XGLM (sinusoidal positions), a Llama with tied embeddings and a mixture of experts are trained from two seeds each,
on the same text in the same order. From the first Llama, M, come:

- M after a tenth of its training, and M trained on for docstrings;
- M pruned to half in width, depth and MLP, then distilled from M, much as Llama-3.2-1B was made;
- M with new embeddings for another tokenizer, and all of its weights trained at one rate: the paper's table 4;
- a student from random weights that is trained towards the hidden states of M: a stranger in the basis of M;
- a model with the seed of M and other text.

Weights are not stored. A GPU trains everything in about an hour.
"""

from __future__ import annotations

import copy
import os
import re
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from benchmarks.runner import Benchmark, Case, Row
from mdir_hf.demo.training import encode, optimize, train_byte_level_bpe

if TYPE_CHECKING:
    from mdir_hf import HomologyReport

DOCSTRING = re.compile(r'"""(.{40,}?)"""', re.DOTALL)
LEVELS = ("auto", "layers")
PEAK_RATE = 1e-3
NEW_EMBEDDING_SHARE = 1e-3
"""Scale of new embeddings, relative to the old ones; zeros would have no gradient."""


@dataclass(frozen=True)
class Size:
    """Sizes of models, batches and text.

    Attributes:
        n_tokens: Tokens that the first Llama is trained on.
        n_characters: Numbers of characters of code and of docstrings.
    """

    vocabulary: int
    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_neurons: int
    batch: int
    length: int
    n_tokens: int
    n_characters: tuple[int, int]


SIZE = Size(8_192, 512, 8, 8, 4, 1_408, 128, 512, 100_000_000, (90_000_000, 30_000_000))
"""A Llama of 33 million parameters."""

SHARE = 1.0
"""Share of the tokens that a run trains on."""


def llama(size: Size, *, is_tied: bool = False) -> Any:
    """Return a Llama: rotary positions, gated MLP, RMS norms."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_llama_sizes(size), tie_word_embeddings=is_tied))


def tied_llama(size: Size) -> Any:
    """Return a Llama with tied embeddings."""
    return llama(size, is_tied=True)


def gpt2(size: Size) -> Any:
    """Learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size.vocabulary, n_embd=size.width, n_layer=size.n_layers, n_head=size.n_heads,
            n_positions=size.length, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


def xglm(size: Size) -> Any:
    """Return an XGLM: sinusoidal positions give channel numbers a meaning, so that they are not evidence."""
    from transformers import XGLMConfig, XGLMForCausalLM

    return XGLMForCausalLM(
        XGLMConfig(
            vocab_size=size.vocabulary, d_model=size.width, num_layers=size.n_layers, attention_heads=size.n_heads,
            ffn_dim=4 * size.width, dropout=0.0, attention_dropout=0.0, layerdrop=0.0,
            max_position_embeddings=size.length,
        )
    )  # fmt: skip


def mixture(size: Size) -> Any:
    """Return a mixture of four experts in each layer, two for each token."""
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = _llama_sizes(size) | {"intermediate_size": size.n_neurons // 2}
    return MixtralForCausalLM(MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2))


def _llama_sizes(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": size.vocabulary, "hidden_size": size.width, "num_hidden_layers": size.n_layers,
        "num_attention_heads": size.n_heads, "num_key_value_heads": size.n_kv_heads,
        "intermediate_size": size.n_neurons, "max_position_embeddings": size.length,
    }  # fmt: skip


RECIPES: Mapping[str, tuple[Callable[[Size], Any], float]] = {
    "gpt2": (gpt2, 0.3),
    "xglm": (xglm, 0.2),
    "tied": (tied_llama, 0.2),
    "mixture": (mixture, 0.04),
}
"""Recipes of further models, and the ratio of its tokens to the tokens of the first Llama."""

SECOND_LLAMA = 0.5
"""Ratio of the second Llama's tokens to the first one's."""

STAGES = (0.05, 0.2, 0.5, 1.0)
"""Shares of a training after which a copy is stored."""


@dataclass
class Workshop:
    """Train models, store them in a folder, and compare them in other processes meanwhile."""

    size: Size
    device: str
    share: float
    folder: Path
    pool: ProcessPoolExecutor
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    comparisons: list[Future[dict[str, Any]]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        code, prose = installed_text(self.size.n_characters)
        self.tokenizer = train_byte_level_bpe([*_some(code, 6), *_some(prose, 3)], vocabulary_size=self.size.vocabulary)
        self.new_tokenizer = train_byte_level_bpe(_some(prose, 9), vocabulary_size=self.size.vocabulary)
        held_out, code = code[-1:], code[:-1]
        self.code, self.prose, self.held_out, self.new_code, self.new_held_out = (
            encode(tokenizer, texts).to(self.device)
            for tokenizer, texts in (
                (self.tokenizer, code), (self.tokenizer, prose), (self.tokenizer, held_out),
                (self.new_tokenizer, code), (self.new_tokenizer, held_out),
            )
        )  # fmt: skip
        self.say(f"text: {len(self.code):,} tokens of code, {len(self.prose):,} of docstrings")

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"{time.monotonic() - self.began:6.0f} s  {text}", flush=True)

    def made(self, make: Callable[[Size], Any], seed: int) -> Any:
        """Return a model with random weights from this seed."""
        torch.manual_seed(seed)
        return make(self.size).to(self.device)

    def train(
        self,
        name: str,
        model: Any,
        share: float,
        *,
        tokens: torch.Tensor | None = None,
        loss_of: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
        stages: Sequence[float] = (1.0,),
        is_compiled: bool = True,
    ) -> list[str]:
        """Train a model in place, keep copies at some stages, and return their names.

        ``share`` is the ratio of its tokens to the tokens of the first Llama. It learns code if ``tokens`` is None.
        """
        size, text = self.size, self.code if tokens is None else tokens
        new = text is self.new_code
        steps = max(2, round(self.share * share * size.n_tokens / (size.batch * size.length)))
        if is_compiled and self.device != "cpu":
            compile_layers(model)
        order = torch.Generator().manual_seed(0)
        names, done = [], 0
        places = {max(1, round(stage * steps)): stage for stage in stages}

        def next_loss() -> torch.Tensor:
            starts = torch.randint(len(text) - size.length, (size.batch, 1), generator=order)
            batch = text[(starts + torch.arange(size.length)).to(self.device)]
            with torch.autocast(self.device.split(":")[0], torch.bfloat16):
                return next_token_loss(model, batch) if loss_of is None else loss_of(model, batch)

        def on_step() -> None:
            nonlocal done
            done += 1
            if done in places:
                names.append(name if places[done] == 1.0 else f"{name}-{places[done]:.0%}")
                self.keep(names[-1], model, done * size.batch * size.length, is_new=new)

        began = time.monotonic()
        losses = optimize(model, next_loss, steps=steps, learning_rate=PEAK_RATE, on_step=on_step)
        rate = steps * size.batch * size.length / (time.monotonic() - began)
        self.say(f"{name}: {steps} steps, loss {losses[0]:.2f} to {losses[-1]:.2f}, {rate:,.0f} tokens a second")
        return names

    def keep(self, name: str, model: Any, n_tokens: int, *, is_new: bool) -> None:
        """Write a model in bfloat16, and note its loss on held-out code."""
        text = self.new_held_out if is_new else self.held_out
        starts = torch.linspace(0, len(text) - self.size.length, 32).long()[:, None]
        batch = text[(starts + torch.arange(self.size.length)).to(self.device)]
        model.eval()
        with torch.no_grad():
            loss = float(next_token_loss(model, batch))
        model.train()
        stored = type(model)(copy.deepcopy(model.config))
        stored.load_state_dict({key: value.float().cpu() for key, value in model.state_dict().items()})
        stored.bfloat16().save_pretrained(self.folder / name)
        (self.new_tokenizer if is_new else self.tokenizer).save(str(self.folder / name / "tokenizer.json"))
        n_parameters = sum(weight.numel() for weight in model.parameters())
        self.models[name] = {"parameters": n_parameters, "tokens": n_tokens, "held_out_loss": round(loss, 3)}

    def compare(self, reference: str, candidate: str, *, is_related: bool) -> None:
        """Compare two models at both levels, in other processes."""
        for level in LEVELS:
            self.comparisons.append(
                self.pool.submit(compared, self.folder, (reference, candidate), level, is_related=is_related)
            )

    def results(self) -> Row:
        """Wait for the comparisons, and return a line of the results."""
        failed = [str(each.exception()) for each in self.comparisons if each.exception()]
        rows = [each.result() for each in self.comparisons if not each.exception()]
        self.say(f"{len(self.comparisons)} comparisons")
        record: Row = {"device": device_name(self.device), "share": self.share, "models": self.models, "pairs": rows}
        return record | ({"failed": failed} if failed else {})


def device_name(device: str) -> str:
    """Return the name of the device."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else "a processor"


def compile_layers(model: Any) -> None:
    """Compile each layer in place, so that layers share one compiled function and weights keep their names."""
    layers = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    for layer in layers:
        layer.compile()


def next_token_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean loss in nats per token."""
    logits = model(input_ids=batch, use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())


def towards_logits(teacher: Any) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    """Return the divergence of a student's next-token distributions from a teacher's."""

    def loss(student: Any, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = functional.log_softmax(teacher(input_ids=batch, use_cache=False).logits.flatten(0, 1).float(), -1)
        guess = functional.log_softmax(student(input_ids=batch, use_cache=False).logits.flatten(0, 1).float(), -1)
        return functional.kl_div(guess, target, log_target=True, reduction="batchmean")

    return loss


def towards_hidden_states(teacher: Any) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    """Return the next-token loss plus the relative squared distance of all hidden states from a teacher's."""

    def loss(student: Any, batch: torch.Tensor) -> torch.Tensor:
        options = {"input_ids": batch, "use_cache": False, "output_hidden_states": True}
        with torch.no_grad():
            target = teacher(**options).hidden_states
        output = student(**options)
        total = functional.cross_entropy(output.logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
        for ours, theirs in zip(output.hidden_states, target, strict=True):
            total = total + (ours - theirs).float().square().mean() / theirs.float().square().mean()
        return total

    return loss


def pruned(model: Any) -> Any:
    """Keep the half of the channels, layers and neurons with the largest weights."""
    from benchmarks.real.relatives import rebuilt
    from benchmarks.zoo import edits
    from benchmarks.zoo.stack import take_apart

    stack = take_apart(model.cpu())
    halved = edits.cut_width(
        edits.take_layers(stack, range(0, len(stack.blocks), 2)),
        n_channels=stack.embedding.shape[1] // 2,
        n_heads=stack.n_heads,
        n_neurons=stack.blocks[0].up.weight.shape[0] // 2,
    )
    return rebuilt(model, halved)


def with_new_embeddings(model: Any, seed: int) -> Any:
    """Return a copy with newly drawn, very small embedding and unembedding."""
    made = copied(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table in (made.get_input_embeddings(), made.get_output_embeddings()):
            drawn = torch.randn(table.weight.shape, generator=generator)
            table.weight.copy_(drawn * table.weight.float().square().mean().sqrt().cpu() * NEW_EMBEDDING_SHARE)
    return made


def copied(model: Any) -> Any:
    """Return a copy that is not compiled."""
    made = type(model)(copy.deepcopy(model.config))
    made.load_state_dict(model.state_dict())
    return made.to(next(model.parameters()).device)


def installed_text(n_characters: tuple[int, int]) -> tuple[list[str], list[str]]:
    """Return code and docstrings of installed packages and the standard library, from different modules, in shards."""
    roots = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    paths = sorted({path for root in roots for path in root.rglob("*.py")})
    shards: tuple[list[str], list[str]] = ([], [])
    for kind, texts in enumerate((_contents(paths[::2]), _docstrings(paths[1::2]))):
        waiting: list[str] = []
        for text in texts:
            waiting.append(text)
            if sum(map(len, waiting)) >= 200_000:
                shards[kind].append("\n\n".join(waiting))
                waiting = []
            if sum(map(len, shards[kind])) >= n_characters[kind]:
                break
    return shards


def _contents(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        if path.stat().st_size < 400_000:  # larger files are generated tables
            yield path.read_text(encoding="utf-8", errors="replace")


def _docstrings(paths: Sequence[Path]) -> Iterator[str]:
    for text in _contents(paths):
        yield "\n\n".join(DOCSTRING.findall(text))


def _some(shards: Sequence[str], n: int) -> list[str]:
    return list(shards[:: max(1, len(shards) // n)])


def compared(
    folder: Path, names: tuple[str, str], level: str, *, is_related: bool, device: str = "cpu"
) -> dict[str, Any]:
    """Compare two models of a folder."""
    from benchmarks.paper.changed_tokenizer import traces
    from mdir_hf import compare

    reference, candidate = (folder / name for name in names)
    began = time.perf_counter()
    report = compare(reference, candidate, level=level, describes=True, progress=False, use_caches=False, device=device)
    row = {
        "a": names[0], "b": names[1], "level": level, "related": is_related, **numbers(report),
        "reason": None if report.reason is None else report.reason.value,
        "seconds": round(time.perf_counter() - began, 2),
    }  # fmt: skip
    if "retokenised" in names[1] and level == "auto":
        row["table_4"] = traces(reference, candidate)
    return row


def numbers(report: HomologyReport) -> Row:
    """Return the numbers of a report on models without common tokens or layers, too."""
    embedding, neurons, layers = report.embedding, report.neurons, report.layers
    best = None if neurons is None else max(map(max, neurons.own_number))
    return {
        "verdict": report.verdict.value,
        "log10_p": report.log10_p,
        "trace_over_rank": None if embedding is None else embedding.normalized_trace,
        "neurons_own_number": best,
        "neurons_tested": None if neurons is None else neurons.tested,
        "layers_log10_p": None if not layers else min((match.log10_p for match in layers.matches), default=0.0),
        "layers_matched": None if not layers else len(layers.matches),
    }


def _one_thread() -> None:
    torch.set_num_threads(1)


def train_and_compare(device: str) -> Row:
    """Train everything, and compare everything in other processes meanwhile; return a line of the results."""
    n_processes = max(1, (os.cpu_count() or 2) - 2)
    with (
        tempfile.TemporaryDirectory() as place,
        ProcessPoolExecutor(n_processes, mp_context=get_context("spawn"), initializer=_one_thread) as pool,
    ):
        work = Workshop(SIZE, device, SHARE, Path(place), pool)
        train_models(work)
        return work.results()


def train_models(work: Workshop) -> None:
    """Train the models, the important ones first, and order their comparisons."""
    strangers: list[str] = []

    def add_stranger(name: str) -> None:
        for earlier in strangers:
            work.compare(earlier, name, is_related=False)
        strangers.append(name)

    def add_relatives(names: Sequence[str]) -> None:
        for name in names:
            work.compare(base, name, is_related=True)

    teacher = work.made(llama, 0)
    early, base = work.train("llama-0", teacher, 1.0, stages=(0.1, 1.0))
    add_relatives([early])
    add_stranger(base)
    work.train("llama-1", work.made(llama, 1), SECOND_LLAMA)
    add_stranger("llama-1")
    student = pruned(copied(teacher)).to(work.device)
    work.keep("pruned", student, 0, is_new=False)
    loss = towards_logits(teacher)
    add_relatives(["pruned", *work.train("pruned-distilled", student, 1.0, loss_of=loss, stages=STAGES)])
    retokenised = with_new_embeddings(teacher, 5)
    add_relatives(work.train("retokenised", retokenised, 1.0, tokens=work.new_code, stages=STAGES))
    loss = towards_hidden_states(copied(teacher))
    work.train("hidden-student", work.made(llama, 6), 0.2, loss_of=loss, is_compiled=False)
    add_stranger("hidden-student")
    for number, (recipe, (make, share)) in enumerate(RECIPES.items(), start=1):
        for seed in (0, 1):
            # No two models share a seed: even with different recipes they would start with the same numbers.
            model = work.made(make, 10 + 2 * number + seed)
            work.train(f"{recipe}-{seed}", model, share, is_compiled=recipe != "mixture")
            add_stranger(f"{recipe}-{seed}")
    add_relatives(work.train("on-docstrings", copied(teacher), 0.4, tokens=work.prose, stages=STAGES))
    add_relatives(work.train("same-seed", work.made(llama, 0), 0.25, tokens=work.prose))


def cases() -> list[Case]:
    """Return one case: everything on this machine's device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [Case((device_name(device), SHARE), partial(train_and_compare, device))]


STRANGERS = Benchmark(
    "strangers-at-scale",
    "strangers and relatives of 33 million parameters, trained on this machine's GPU",
    ("device", "share"),
    cases,
)
