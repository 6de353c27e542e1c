"""Measure how the cost of a comparison grows with model size: 0.1 B to 1 T parameters, four kinds of candidate.

It takes some minutes on one core up to 70 B, and 11 GB of memory for larger models. Shapes and names come from
published models. Weights are generated when they are read, so nothing is stored; the time for generating them is not
counted. The figure also shows the bytes that peers would fetch (``benchmarks/peers/full_size.py``).
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import torch
from scipy.fft import dct

from benchmarks.peers.full_size import Shape, weights_read
from benchmarks.runner import RESULTS, Benchmark, Case, UnavailableError
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import compare_models
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.roles import Anatomy, resolve_anatomy
from mdir_hf.model.sources import Description, TensorSpec
from mdir_hf.model.tokens import Vocabulary
from mdir_hf.model.tokens.tokens import VocabularyKind
from mdir_hf.report import ModelSummary
from mdir_hf.report.words import OF_MEMORY

KINDS = ("copy", "fine-tune", "hidden", "stranger")
RUN_ROWS = 16
"""Number of rows generated at a time."""

DRAWN_ROWS = 4096
"""Number of rows of a matrix generated at a time, which bounds the memory."""

FINE_TUNED = 0.3
"""Noise of a fine-tune, in RMS of the weights; far more than training causes."""


@dataclass(frozen=True)
class Size:
    """Shape of a published model like Llama or DeepSeek (latent attention, experts)."""

    name: str
    billions: float
    rows: int
    width: int
    layers: int
    neurons: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False
    n_bytes_per_weight: int = 2
    experts: int = 0
    expert_neurons: int = 0
    kv_latent: int = 0

    @property
    def config(self) -> dict[str, object]:
        """Contents of its ``config.json``."""
        common: dict[str, object] = {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "vocab_size": self.rows,
            "tie_word_embeddings": self.tied,
            "intermediate_size": self.neurons,
        }
        if not self.experts:
            more = {"num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "model_type": "llama"}
            return common | more | {"architectures": ["LlamaForCausalLM"]}
        return common | {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "num_key_value_heads": self.heads,
            "kv_lora_rank": self.kv_latent - 64,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "moe_intermediate_size": self.expert_neurons,
            "first_k_dense_replace": 1,
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes."""
        yield "model.embed_tokens.weight", (self.rows, self.width)
        if not self.tied:
            yield "lm_head.weight", (self.rows, self.width)
        yield "model.norm.weight", (self.width,)
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            yield f"{at}input_layernorm.weight", (self.width,)
            yield f"{at}post_attention_layernorm.weight", (self.width,)
            for name, shape in self._attention():
                yield f"{at}self_attn.{name}.weight", shape
            if not self.experts or layer == 0:
                yield from self._mlp(f"{at}mlp", self.neurons)
                continue
            yield from self._mlp(f"{at}mlp.shared_experts", self.expert_neurons)
            for expert in range(self.experts):
                yield from self._mlp(f"{at}mlp.experts.{expert}", self.expert_neurons)

    def _attention(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        if not self.experts:
            yield "q_proj", (self.heads * self.head_dim, self.width)
            yield "k_proj", (self.kv_heads * self.head_dim, self.width)
            yield "v_proj", (self.kv_heads * self.head_dim, self.width)
            yield "o_proj", (self.width, self.heads * self.head_dim)
            return
        yield "q_a_proj", (1536, self.width)
        yield "q_b_proj", (self.heads * 192, 1536)
        yield "kv_a_proj_with_mqa", (self.kv_latent, self.width)
        yield "kv_b_proj", (self.heads * 256, self.kv_latent - 64)
        yield "o_proj", (self.width, self.heads * 128)

    def _mlp(self, at: str, n_neurons: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{at}.gate_proj.weight", (n_neurons, self.width)
        yield f"{at}.up_proj.weight", (n_neurons, self.width)
        yield f"{at}.down_proj.weight", (self.width, n_neurons)


SIZES = (
    Size("SmolLM2-135M-Instruct", 0.135, 49_152, 576, 30, 1536, 9, 3, 64, tied=True),
    Size("Qwen2.5-0.5B", 0.5, 151_936, 896, 24, 4864, 14, 2, 64, tied=True),
    Size("Llama-3.2-1B", 1.2, 128_256, 2048, 16, 8192, 32, 8, 64, tied=True),
    Size("Llama-3.2-3B", 3.2, 128_256, 3072, 28, 8192, 24, 8, 128, tied=True),
    Size("Llama-3.1-8B", 8.0, 128_256, 4096, 32, 14_336, 32, 8, 128),
    Size("Qwen2.5-32B", 32.8, 152_064, 5120, 64, 27_648, 40, 8, 128),
    Size("Llama-3.1-70B", 70.6, 128_256, 8192, 80, 28_672, 64, 8, 128),
    Size("Llama-3.1-405B", 405.0, 128_256, 16_384, 126, 53_248, 128, 8, 128),
    Size("DeepSeek-V3", 671.0, 129_280, 7168, 61, 18_432, 128, 128, 128, False, 1, 256, 2048, 576),
    Size("Kimi-K2", 1000.0, 163_840, 7168, 61, 18_432, 64, 64, 128, False, 1, 384, 2048, 576),
)


@dataclass
class DrawnModel:
    """A model that generates its weights when they are read. Implements ``Comparable`` and ``TensorSource``.

    Args:
        size: Shape of the model.
        kind: Relation to the model of seed 0: ``base``, or one of :data:`KINDS`.
        ledger: Counts bytes.

    Attributes:
        drawing_s: Processor seconds for generating weights.
    """

    size: Size
    kind: str
    ledger: IoLedger
    drawing_s: float = 0.0
    paths: tuple[str, ...] = ()
    description: Description = field(default_factory=lambda: Description("drawn"))
    vocabulary_from: str | None = None
    is_remote: bool = False
    is_sharded: bool = False
    other_stacks: tuple[()] = ()

    def known_inventory(self) -> None:
        """Return None: there are no files."""

    @property
    def label(self) -> str:
        """Name in errors."""
        return f"{self.size.name}-{self.kind}"

    @property
    def tensors(self) -> DrawnModel:
        """Its weights: the object itself."""
        return self

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """Every tensor, by name."""
        specs, at = {}, 0
        for name, shape in self.size.tensors():
            stop = at + math.prod(shape) * self.size.n_bytes_per_weight
            specs[name] = TensorSpec(name, shape, "BF16", "", at, stop)
            at = stop
        return specs

    @cached_property
    def n_bytes(self) -> int:
        """Stored size."""
        return sum(spec.n_bytes for spec in self.specs.values())

    @cached_property
    def anatomy(self) -> Anatomy:
        """Roles of the tensors."""
        return resolve_anatomy(self.size.config, self.names(), lambda name: self.spec(name).shape)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """One token per row."""
        row_of = {f"token {row}".encode(): row for row in range(self.size.rows)}
        return Vocabulary(VocabularyKind.PLAIN, row_of, self.size.rows, 0, 0, 0, 0, {}, ())

    @property
    def vocabulary_key(self) -> object:
        """Equal for all models of a size."""
        return self.size.name

    def names(self) -> tuple[str, ...]:
        """Names of all tensors."""
        return tuple(self.specs)

    def spec(self, name: str) -> TensorSpec:
        """Shape and place of a tensor."""
        return self.specs[name]

    def identities(self) -> None:
        """No digests are known."""
        return None

    def summary(self) -> ModelSummary:
        """Summary for a report."""
        size = self.size
        return ModelSummary(self.label, None, None, "drawn", size.width, size.layers, size.rows)

    def read(self, name: str) -> torch.Tensor:
        """Generate a whole tensor."""
        spec = self.spec(name)
        if len(spec.shape) == 1:
            self._count(name, spec.n_bytes, 1)
            return torch.ones(spec.shape)
        self._count(name, spec.n_bytes, 1)
        return self._drawn(name, np.arange(spec.shape[0], dtype=np.int64))

    def read_rows(self, name: str, rows: npt.NDArray[np.int64], *, max_gap_bytes: int | None = None) -> torch.Tensor:
        """Generate some rows of a matrix; a run of neighbours counts as one read."""
        spec = self.spec(name)
        n_runs = int((np.diff(np.sort(rows)) > 1).sum()) + 1
        self._count(name, len(rows) * spec.n_bytes // spec.shape[0], n_runs)
        return self._drawn(name, rows)

    def _count(self, name: str, n_bytes: int, n_reads: int) -> None:
        with self.ledger.reserve(name, n_bytes) as arrived:
            arrived(n_bytes)
        self.ledger.requests += n_reads

    def _drawn(self, name: str, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        started = time.thread_time()
        weight = torch.empty(len(rows), self.spec(name).shape[1])
        for start in range(0, len(rows), DRAWN_ROWS):
            drawn = self._weight(name, rows[start : start + DRAWN_ROWS])
            weight[start : start + DRAWN_ROWS] = drawn.bfloat16()  # the usual storage dtype
        self.drawing_s += time.thread_time() - started
        return weight

    def _weight(self, name: str, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        width = self.spec(name).shape[1]
        if self.kind == "stranger":
            return _rows_of(f"stranger {name}", rows, width)
        weight = _rows_of(name, self._moved(name, rows), width)
        if self.kind == "fine-tune":
            weight += FINE_TUNED * _rows_of(f"noise {name}", rows, width)
        if self.kind == "hidden" and width == self.size.width:
            weight = _turned(weight)
        return weight

    def _moved(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return neurons and groups of heads in another order, the same in every projection of a layer."""
        if self.kind != "hidden" or name.count(".") < 3:
            return rows
        layer = int(name.split(".")[2])
        if "gate_proj" in name or "up_proj" in name:
            order = np.random.default_rng(layer).permutation(self.spec(name).shape[0])
            return np.asarray(order[rows], dtype=np.int64)
        if not self.size.experts and any(role in name for role in ("q_proj", "k_proj", "v_proj")):
            order = np.random.default_rng(1000 + layer).permutation(self.size.kv_heads)
            group = self.spec(name).shape[0] // self.size.kv_heads
            return np.asarray(order[rows // group] * group + rows % group, dtype=np.int64)
        return rows


def _rows_of(name: str, rows: npt.NDArray[np.int64], width: int) -> torch.Tensor:
    """Generate rows of a tensor, the same on every call."""
    weight = torch.empty(len(rows), width)
    order = np.argsort(rows // RUN_ROWS, kind="stable")
    runs, first = np.unique(rows[order] // RUN_ROWS, return_index=True)
    for run, places in zip(runs, np.split(order, first[1:]), strict=True):
        seed = zlib.crc32(f"{name} {run}".encode())
        drawn = torch.randn(RUN_ROWS, width, generator=torch.Generator().manual_seed(seed))
        weight[torch.from_numpy(places)] = drawn[torch.from_numpy(rows[places] % RUN_ROWS)]
    return weight.mul_(0.02)


def _turned(weight: torch.Tensor) -> torch.Tensor:
    """Rotate the residual stream by signs, a cosine transform, signs, and another cosine transform."""
    turned = weight.numpy()
    for seed in (1, 2):
        signs = np.random.default_rng(seed).choice(np.array([-1.0, 1.0], dtype=np.float32), turned.shape[1])
        turned = dct(turned * signs, norm="ortho", axis=1)
    return torch.from_numpy(np.ascontiguousarray(turned))


def measure(size: Size, kind: str) -> dict[str, object]:
    """Compare the base of a size with a candidate."""
    ledger = IoLedger()
    base, candidate = (DrawnModel(size, each, ledger) for each in ("base", kind))
    for model in (base, candidate):  # names, roles and tokens: the cost of opening a model is not measured here
        _ = model.anatomy, model.vocabulary, model.n_bytes
    started = time.process_time()
    watch = Watch(ledger, Listeners(progress=False))
    report = compare_models(base, candidate, Settings(), watch)
    cpu_s = time.process_time() - started - base.drawing_s - candidate.drawing_s
    for caveat in report.caveats:
        # Only copies under noise need the noise step, which takes 35 GB for the largest width.
        if caveat.endswith(OF_MEMORY) and not caveat.startswith("Copies under noise were not searched"):
            raise UnavailableError(caveat)
    whole = base.n_bytes + candidate.n_bytes
    return {
        "model": size.name,
        "billions": size.billions,
        "candidate": kind,
        "verdict": report.verdict.value,
        "settled_by": None if report.settled_by is None else report.settled_by.value,
        "log10_p": None if report.log10_p is None else round(report.log10_p, 1),
        "n_bytes_read": ledger.bytes_read,
        "share": ledger.bytes_read / whole,
        "reads": ledger.requests,
        "cpu_s": round(cpu_s, 2),
    }


def draw(rows: list[dict[str, object]]) -> None:
    """Plot bytes and seconds against parameters."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for kind in KINDS:
        of_kind = sorted((r for r in rows if r["candidate"] == kind), key=lambda r: float(str(r["billions"])))
        x = [float(str(r["billions"])) for r in of_kind]
        axes[0].plot(x, [float(str(r["n_bytes_read"])) / 1e9 for r in of_kind], "o-", label=kind)
        axes[1].plot(x, [float(str(r["cpu_s"])) for r in of_kind], "o-", label=kind)
    dense = [size for size in SIZES if not size.experts]
    for peer, style in (("HuRef", ":"), ("AWM", "--"), ("REEF", "-.")):
        n_bytes = [2 * size.n_bytes_per_weight * weights_read(_llama(size))[peer][0] for size in dense]
        axes[0].plot([s.billions for s in dense], [n / 1e9 for n in n_bytes], style, color="grey", label=peer)
    for axis, what in zip(axes, ("GB read of both models", "processor seconds"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="billions of parameters", ylabel=what)
        axis.legend(fontsize=8)
    figure.savefig(RESULTS / "cost-growth.png", dpi=110)


def _llama(size: Size) -> Shape:
    return Shape(size.rows, size.width, size.layers, size.kv_heads * size.head_dim, size.neurons)


def cases() -> Iterator[Case]:
    """Yield each pair, the small models first."""
    for size in SIZES:
        for kind in KINDS:
            yield Case((size.name, kind), partial(measure, size, kind))


COST_GROWTH = Benchmark(
    "cost-growth",
    "bytes and seconds of a comparison up to 405 B parameters, on weights that are drawn when they are read",
    ("model", "candidate"),
    cases,
    draw,
)
