"""Apply published methods of compression, conversion and merging to real models, and judge the results.

Each method is applied to two base models. The result is compared with its base directly. If the method keeps the
layers, it is also compared with new random embeddings and a rotated residual stream, so that only the layers remain.
(If most of the layers are foreign, the stream is not rotated.) The unrelated pairs consist of a result from one base
and the other base. No model is trained or run to choose parameters, except for the bases of SliceGPT: entries are
chosen by size, and rotations at random. Unpublished methods that were designed to be hard are marked. The models are
written to a temporary folder, one at a time.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.real.bases import base_folder, load
from benchmarks.real.judging import ALPHA, numbers
from benchmarks.real.relatives import config_of, new_embeddings, noise
from benchmarks.real.sliced import sliced
from benchmarks.real.trained import tokens_of
from benchmarks.real.workshop import MIDDLE, SMALL, Model, built
from benchmarks.runner import Benchmark, Case, Row
from benchmarks.zoo import edits
from benchmarks.zoo.stack import Affine, Stack, state_dict, take_apart
from mdir_hf import HomologyChecker, MdirError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

State = dict[str, torch.Tensor]
Config = dict[str, Any]
Edit = Callable[[Stack, torch.Generator], Stack]
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")


OF_SVD_LLM = ("_u_proj.weight", "_v_proj.weight")
OF_ASVD = ("_proj.ALinear.weight", "_proj.BLinear.weight")
"""Suffixes of the names of two factors."""

UNSAID = ("quantization_config", "_name_or_path")
"""Entries in the config of a base that do not apply to its derivatives."""


def _unnamed(state: State) -> State:
    return state


def _as_it_is(stack: Stack, config: Config) -> Config:
    del stack
    return config


@dataclass(frozen=True)
class Method:
    """A published method.

    Attributes:
        name: Name of the method, a key of the results.
        done: Its effect, as a phrase.
        edit: Changes the weights.
        renamed: Names and splits the stored tensors; by default, they have the names of transformers.
        keeps_layers: Whether the layers alone are enough for detection.
        keeps_embeddings: Whether the unmodified result is also compared.
        is_published: Whether the method is published; otherwise it was designed to be hard.
        is_turned: Whether the residual stream is also rotated if only the layers are compared.
        config: Changes the config.
    """

    name: str
    done: str
    edit: Edit
    renamed: Callable[[State], State] = _unnamed
    keeps_layers: bool = True
    keeps_embeddings: bool = True
    is_turned: bool = True
    is_published: bool = True
    config: Callable[[Stack, Config], Config] = _as_it_is


def on_matrices(change: Callable[[torch.Tensor, torch.Generator], torch.Tensor], parts: tuple[str, ...] = ()) -> Edit:
    """Change every matrix of every layer, or of some roles."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        for block in stack.blocks:
            for part in parts or PROJECTIONS:
                affine = getattr(block, part)
                affine.weight = change(affine.weight.float(), generator)
        return stack

    return edit


def shuffled(matrix: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shuffle the entries, so that only the distribution of a matrix is kept."""
    return matrix.flatten()[torch.randperm(matrix.numel(), generator=generator)].reshape(matrix.shape)


def rounded(n_bits: int, group: int = 64) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    """Round to the nearest of ``2 ** n_bits`` symmetric levels, in groups within a row."""

    def change(matrix: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        del generator
        groups = matrix.reshape(-1, group)
        step = groups.abs().amax(1, keepdim=True).clamp(min=1e-12) / (2 ** (n_bits - 1) - 0.5)
        return (((groups / step - 0.5).round() + 0.5) * step).reshape(matrix.shape)

    return change


def ternary(matrix: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Round as BitNet b1.58 does: to -1, 0 or 1, times the mean absolute value."""
    del generator
    scale = matrix.abs().mean()
    return (matrix / scale).round().clamp(-1, 1) * scale


def two_of_four(matrix: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Keep the two largest of every four entries of a row."""
    del generator
    groups = matrix.reshape(-1, 4)
    is_kept = torch.zeros_like(groups).scatter_(1, groups.abs().topk(2).indices, 1.0)
    return (groups * is_kept).reshape(matrix.shape)


def smallest_removed(share: float) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    """Set the smallest entries to zero."""

    def change(matrix: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        del generator
        least = matrix.abs().flatten().kthvalue(int(share * matrix.numel())).values
        return torch.where(matrix.abs() > least, matrix, 0.0)

    return change


def low_rank(matrix: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return the best approximation by two factors with half as many numbers."""
    left, right = factors(matrix)
    return left @ right


def factors(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two factors of :func:`low_rank`, each with the square root of the singular values."""
    u, s, vh = torch.linalg.svd(matrix.float(), full_matrices=False)
    rank = matrix.numel() // (2 * sum(matrix.shape))
    root = s[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * vh[:rank]


def in_factors(names: tuple[str, str]) -> Callable[[State], State]:
    """Store the matrices of layers as two factors, under two names each."""

    def renamed(state: State) -> State:
        stored: State = {}
        for name, weight in state.items():
            at = name.removesuffix("_proj.weight")
            if at == name:
                stored[name] = weight
                continue
            for ending, factor in zip(names, factors(weight), strict=True):
                stored[at + ending] = factor
        return stored

    return renamed


def hadamard(n: int, generator: torch.Generator) -> torch.Tensor:
    """Return a random orthogonal matrix from a Hadamard matrix with random signs."""
    size = n & -n
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    matrix = torch.kron(edits.rotation(n // size, generator).contiguous(), matrix / math.sqrt(size))
    return matrix * (torch.randint(2, (n, 1), generator=generator) * 2.0 - 1.0)


def quarot(stack: Stack, generator: torch.Generator) -> Stack:
    """Apply QuaRot: Hadamard rotations of the residual stream, of values in each head and of inputs of down; 4 bits."""
    made = edits.turn_stream_by(stack, hadamard(stack.embedding.shape[1], generator))
    for block in made.blocks:
        edits.turn_values(made, block, generator)
        block.down.weight = block.down.weight @ hadamard(block.down.weight.shape[1], generator)
    return on_matrices(rounded(4))(made, generator)


def slicegpt(base: str) -> Edit:
    """Apply SliceGPT: principal components of the inputs of each norm, without the last quarter."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        from tokenizers import Tokenizer

        del stack, generator
        folder = base_folder(base)
        ids = tokens_of(Tokenizer.from_file(str(folder / "tokenizer.json")))[: 16 * 256].reshape(16, 256)
        return take_apart(sliced(load(folder), ids, share_cut=0.25))

    return edit


def of_kv_heads(change: Callable[[torch.Tensor, int], torch.Tensor], n_kv_heads: Callable[[Stack], int]) -> Edit:
    """Combine key/value heads into other ones, ``(heads, d, n)``."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        del generator
        n_new = n_kv_heads(stack)
        for block in stack.blocks:
            for part in (block.k, block.v):
                heads = part.weight.reshape(stack.n_kv_heads, -1, part.weight.shape[1])
                part.weight = change(heads, n_new).flatten(0, 1)
                if part.bias is not None:
                    part.bias = change(part.bias.reshape(stack.n_kv_heads, -1, 1), n_new).flatten()
        stack.n_kv_heads = n_new
        return stack

    return edit


def minitron(stack: Stack, generator: torch.Generator) -> Stack:
    """Prune like Minitron: keep the largest three quarters of the channels and half of the neurons."""
    del generator
    n, n_neurons = stack.embedding.shape[1], stack.blocks[0].up.weight.shape[0]
    made = edits.cut_width(stack, n_channels=n * 3 // 4, n_heads=stack.n_heads, n_neurons=n_neurons // 2)
    for block in made.blocks:
        order = block.down.weight.norm(dim=0).argsort(descending=True)
        block.up, block.gate = (Affine(x.weight[order], x.bias) for x in (block.up, block.gate))
        block.down = Affine(block.down.weight[:, order], block.down.bias)
    return made


def short(stack: Stack, generator: torch.Generator) -> Stack:
    """Prune like ShortGPT: remove a quarter of the layers, in a row before the last one."""
    del generator
    n = len(stack.blocks)
    return edits.take_layers(stack, [*range(n - 1 - n // 4), n - 1])


def llm_pruner(stack: Stack, generator: torch.Generator) -> Stack:
    """Prune like LLM-Pruner and FLAP: keep different numbers of neurons and key/value groups in each layer."""
    group = stack.n_heads // stack.n_kv_heads
    d = stack.head_dim
    for index, block in enumerate(stack.blocks[2:-1]):
        kv_heads = torch.arange(stack.n_kv_heads)[: max(1, stack.n_kv_heads - index % 2)]
        kv = (d * kv_heads[:, None] + torch.arange(d)).flatten()
        q = (group * d * kv_heads[:, None] + torch.arange(group * d)).flatten()
        block.k, block.v = edits.take_rows(block.k, kv), edits.take_rows(block.v, kv)
        block.q, block.o = edits.take_rows(block.q, q), edits.take_columns(block.o, q)
        n = block.up.weight.shape[0]
        neurons = torch.randperm(n, generator=generator)[: n - 8 * (5 + index)].sort().values
        block.up, block.gate = edits.take_rows(block.up, neurons), edits.take_rows(block.gate, neurons)
        block.down = edits.take_columns(block.down, neurons)
    return stack


def puzzle(state: State) -> State:
    """Edit like Puzzle (Nemotron-NAS): every fourth layer without attention, every fifth with a linear map instead."""
    stored: State = {}
    for name, weight in state.items():
        words = name.split(".")
        index = int(words[2]) if words[1] == "layers" else 1
        is_attention = "self_attn" in name or "input_layernorm" in name
        if is_attention and index % 4 == 0:
            continue
        if is_attention and index % 5 == 0:
            if name.endswith("o_proj.weight"):
                stored[f"model.layers.{index}.self_attn.linear_attn.weight"] = weight @ weight.T
            continue
        stored[name] = weight
    return stored


def puzzle_config(stack: Stack, config: Config) -> Config:
    """Return the list of blocks that replaces the numbers in its config."""
    group = stack.n_heads // stack.n_kv_heads

    def block(index: int) -> dict[str, Any]:
        none, linear = index % 4 == 0, index % 5 == 0 and index % 4 != 0
        attention = {
            "n_heads_in_group": None if none or linear else group,
            "no_op": none,
            "replace_with_linear": linear,
        }
        return {"attention": attention, "ffn": {"ffn_mult": 2.67, "no_op": False, "replace_with_linear": False}}

    blocks = [block(index) for index in range(len(stack.blocks))]
    none = {"intermediate_size": None, "num_key_value_heads": None}
    return config | none | {"model_type": "nemotron-nas", "block_configs": blocks}


def only(*parts: str, share: int = 3) -> Edit:
    """Shuffle everything except these projections of every third layer."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        for index, block in enumerate(stack.blocks):
            for part in PROJECTIONS:
                if part not in parts or index % share:
                    affine = getattr(block, part)
                    affine.weight = shuffled(affine.weight, generator)
        return stack

    return edit


def one_layer(stack: Stack, generator: torch.Generator) -> Stack:
    """Shuffle everything except one layer in the middle."""
    for index, block in enumerate(stack.blocks):
        if index != len(stack.blocks) // 2:
            on_matrices(shuffled)(replace(stack, blocks=[block]), generator)
    return stack


def third_of_neurons(stack: Stack, generator: torch.Generator) -> Stack:
    """Shuffle attention and two thirds of the neurons of every layer."""
    on_matrices(shuffled, ("q", "k", "v", "o"))(stack, generator)
    for block in stack.blocks:
        gone = torch.randperm(block.up.weight.shape[0], generator=generator)[block.up.weight.shape[0] // 3 :]
        for part in (block.up, block.gate):
            part.weight[gone] = shuffled(part.weight[gone], generator)
        block.down.weight[:, gone] = shuffled(block.down.weight[:, gone], generator)
    return stack


def factorised_embedding(stack: Stack, generator: torch.Generator) -> Stack:
    """Replace the embedding by a product of rank 128."""
    del generator
    u, s, vh = torch.svd_lowrank(stack.embedding.float(), q=128)
    stack.embedding = (u * s) @ vh.T
    return stack


def of_task(change: Callable[[torch.Tensor, torch.Tensor, torch.Generator], torch.Tensor], base: str) -> Edit:
    """Merge a base and a fine-tune of it: ``change(base, difference, generator)``."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        tuned = take_apart(load(built(Model(base, "tuned-1e-4" if base == SMALL else "lora"))))
        for base_matrix, tuned_matrix in zip(stack.matrices(), tuned.matrices(), strict=True):
            base_matrix.copy_(change(base_matrix, tuned_matrix - base_matrix, generator))
        return stack

    return edit


def dare(base: torch.Tensor, difference: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Apply DARE: drop nine tenths of the difference and multiply the rest by ten."""
    is_kept = torch.rand(difference.shape, generator=generator) < 0.1
    return base + 10.0 * difference * is_kept


def eagle(stack: Stack, generator: torch.Generator) -> Stack:
    """Draw one layer anew, under the embedding of the base."""
    made = edits.take_layers(stack, [0])
    return on_matrices(shuffled)(made, generator)


def eagle_1(state: State) -> State:
    """EAGLE-1 and -2 store no prefix, no head and only one norm; a matrix joins embedding and state."""
    width = state["model.embed_tokens.weight"].shape[1]
    stored = {name.removeprefix("model."): weight for name, weight in state.items()}
    for gone in ("norm.weight", "lm_head.weight", "layers.0.input_layernorm.weight"):
        stored.pop(gone, None)
    return stored | {"fc.weight": torch.randn(width, 2 * width) / width**0.5}


def draft_layer(state: State) -> State:
    """Store one layer of the base and a head of some rows under the names of EAGLE-3, without an embedding."""
    head = state.get("lm_head.weight", state["model.embed_tokens.weight"])
    rows = torch.arange(0, len(head), 4)
    stored = {
        name.replace("model.layers.0", "midlayer"): weight for name, weight in state.items() if ".layers.0." in name
    }
    for part in "qkv":
        at = f"midlayer.self_attn.{part}_proj.weight"
        stored[at] = torch.cat([stored[at], torch.randn_like(stored[at]) * stored[at].std()], 1)
    width = head.shape[1]
    return stored | {
        "midlayer.hidden_norm.weight": torch.ones(width),
        "norm.weight": state["model.norm.weight"],
        "fc.weight": torch.randn(width, 3 * width) / width**0.5,
        "lm_head.weight": head[rows],
        "d2t": rows - torch.arange(len(rows)),
        "t2d": (torch.arange(len(head)) % 4 == 0),
    }


def medusa(state: State) -> State:
    """Store Medusa's heads, which start as the base's unembedding, each after one residual block."""
    head = state.get("lm_head.weight", state["model.embed_tokens.weight"])
    width = head.shape[1]
    stored: State = {}
    for index in range(2):
        stored[f"{index}.0.linear.weight"] = torch.randn(width, width) * 0.02
        stored[f"{index}.0.linear.bias"] = torch.zeros(width)
        stored[f"{index}.1.weight"] = head + 0.1 * head.std() * torch.randn(head.shape)
    return stored


def medusa_config(stack: Stack, config: Config) -> Config:
    """Return Medusa's config, which has only the base and the number of heads."""
    del stack, config
    return {"base_model_name_or_path": "owner/base", "medusa_num_heads": 2, "medusa_num_layers": 1}


def methods(base: str) -> list[Method]:
    """Return every method for one base."""
    keep: Edit = lambda stack, generator: stack  # noqa: E731
    only_one = tuple(
        Method(
            f"only-{part}",
            f"only {part} of every third layer kept",
            only(part),
            keeps_embeddings=False,
            is_turned=False,
            is_published=False,
        )
        for part in PROJECTIONS
    )
    return [
        Method("slicegpt", "SliceGPT: a quarter of the channels cut, a basis in every layer", slicegpt(base)),
        Method("quarot-4bit", "QuaRot: Hadamard rotations, 4 bits", quarot),
        Method("int2", "2 bits, groups of 64", on_matrices(rounded(2))),
        Method("ternary", "BitNet b1.58: three values", on_matrices(ternary)),
        Method("2-of-4", "the pattern of Wanda and SparseGPT: 2 of 4 entries", on_matrices(two_of_four)),
        Method("sparse-70", "70 % of the entries removed", on_matrices(smallest_removed(0.7))),
        Method("svd", "truncated SVD, half of the numbers, multiplied out", on_matrices(low_rank)),
        Method(
            "svd-llm",
            "truncated SVD under the names of SVD-LLM",
            keep,
            in_factors(OF_SVD_LLM),
        ),
        Method(
            "asvd",
            "truncated SVD under the names of ASVD",
            keep,
            in_factors(OF_ASVD),
        ),
        Method("minitron", "Minitron: channels and neurons cut, neurons by size", minitron),
        Method("shortgpt", "ShortGPT: a quarter of the layers left out", short),
        Method("llm-pruner", "the shapes of LLM-Pruner and FLAP: layers of different widths", llm_pruner),
        Method("puzzle", "the names of Puzzle: layers without attention", keep, puzzle, config=puzzle_config),
        Method(
            "kv-averaged",
            "key/value heads averaged to one",
            of_kv_heads(lambda heads, n: heads.mean(0, keepdim=True).expand(n, -1, -1), lambda stack: 1),
        ),
        Method(
            "kv-repeated",
            "key/value heads repeated for each query head",
            of_kv_heads(
                lambda heads, n: heads.repeat_interleave(n // len(heads), 0),
                lambda stack: stack.n_heads,
            ),
        ),
        Method(
            "no-attention",
            "Mamba-in-Llama, LoLCATs, QRWKV: attention drawn anew",
            on_matrices(shuffled, ("q", "k", "v", "o")),
        ),
        Method("one-layer", "one layer kept, the others foreign", one_layer, is_published=False),
        Method(
            "third-of-neurons",
            "a third of the neurons kept",
            third_of_neurons,
            keeps_embeddings=False,
            is_published=False,
        ),
        *only_one,
        Method("factorised", "embedding of rank 128", factorised_embedding, keeps_layers=False),
        Method("dare-90", "DARE: nine tenths of the update dropped", of_task(dare, base)),
        Method("negated", "the fine-tune subtracted", of_task(lambda weight, change, _: weight - change, base)),
        Method(
            "hidden",
            "all transformations that preserve the function",
            edits.obfuscate,
            keeps_layers=False,
            is_published=False,
        ),
        Method(
            "hidden-noise",
            "all transformations that preserve the function, then noise of 1 RMS",
            lambda stack, generator: noise(1.0)(edits.obfuscate(stack, generator), generator),
            keeps_layers=False,
            is_published=False,
        ),
        Method("eagle-1", "EAGLE-1: a new layer under the base's embedding", eagle, eagle_1, keeps_layers=False),
        Method(
            "eagle-3",
            "the names of EAGLE-3, no embedding; the layer is a copy of the base's",
            keep,
            draft_layer,
            keeps_layers=False,
        ),
        Method(
            "medusa",
            "Medusa: heads from the base's unembedding",
            keep,
            medusa,
            keeps_layers=False,
            config=medusa_config,
        ),
    ]


@torch.no_grad()
def write(model: PreTrainedModel, base: Path, method: Method, folder: Path, *, hides: bool) -> None:
    """Write the result of a method on a model, in BF16, without building a module."""
    from safetensors.torch import save_file

    torch.manual_seed(7)  # tensors outside the stack
    generator = torch.Generator().manual_seed(7)
    stack = method.edit(take_apart(model), generator)
    if hides:
        stack = new_embeddings(stack, generator)
        stack = edits.turn_stream(stack, generator) if method.is_turned else stack
    config = {key: value for key, value in config_of(model, stack).items() if key not in UNSAID}
    config["architectures"] = [type(model).__name__]
    config = method.config(stack, config)
    state = state_dict(stack)
    if stack.head is None:
        state.pop("lm_head.weight")
    stored = method.renamed(state)
    folder.mkdir(parents=True)
    save_file(
        {
            name: (weight.to(torch.bfloat16) if weight.is_floating_point() else weight).contiguous().clone()
            for name, weight in stored.items()
        },
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, folder / name)


def judge(reference: Path, candidate: Path) -> dict[str, Any]:
    """Compare two folders and return the checker's result."""
    started = time.perf_counter()
    try:
        checker = HomologyChecker.from_pretrained(str(reference), use_caches=False, alpha=ALPHA)
        row = numbers(checker.compare(str(candidate), progress=False))
    except MdirError as exc:
        row = {"verdict": "error", "error": exc.message}
    return row | {"wall_s": round(time.perf_counter() - started, 1)}


def judged(base: str, method: Method, left: str) -> Row:
    """Apply a method, and compare the result with its base, or as a stranger with the other base."""
    reference = base if left != "stranger" else MIDDLE
    origin = base if left != "stranger" else SMALL
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "made"
        write(load(base_folder(origin)), base_folder(origin), method, made, hides=left == "layers")
        gc.collect()
        row = judge(base_folder(reference), made)
    described = {"base": base, "method": method.name, "done": method.done, "left": left}
    return {**described, "related": left != "stranger", "published": method.is_published, **row}


def cases() -> Iterator[Case]:
    """Yield each method on each base, as it is and with hidden layers alone, and on SmolLM2 as a stranger to Qwen."""
    for base in (SMALL, MIDDLE):
        for method in methods(base):
            for left, is_wanted in (("all", method.keeps_embeddings), ("layers", method.keeps_layers)):
                if is_wanted:
                    yield Case((base, method.name, left), partial(judged, base, method, left))
            if base == SMALL and method.keeps_embeddings:
                yield Case((MIDDLE, method.name, "stranger"), partial(judged, MIDDLE, method, "stranger"))


REAL_METHODS = Benchmark(
    "real-methods", "verdicts on real models after published methods", ("base", "method", "left"), cases
)
