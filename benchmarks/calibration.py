"""Compute the p-values of two thousand pairs of independently trained models.

The models are small language models, each trained from its own initialisation: on one text in one order, on another
text, half trained, untrained, with outlier channels in the same positions, with another architecture. Sixteen more are
rotated after training into the principal axes of their embeddings or into varimax axes. Two unrelated models may share
these bases without sharing a weight, which is the worst case known for the method, so they are counted separately.

The results of each pair are z, the trace of the polar factor along the fixed matching i to i, in units of its standard
deviation if one model's axes are random; the number of positive minus negative entries; the smallest ln p of the four
searches for a matching before it is capped at 0; and the checker's verdict.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.runner import Benchmark, Case, Row
from benchmarks.zoo.build import cache_root, text_of
from benchmarks.zoo.stack import Shape, new_model
from mdir_hf import HomologyChecker
from mdir_hf.demo.training import BEGIN, END, mean_loss, seeded_single_thread, train
from mdir_hf.demo.transformations import rotate_channels
from mdir_hf.method.matching import Matching, best_matching
from mdir_hf.method.polar import PolarFactor, polar_factor_of_rows, row_factors
from mdir_hf.method.rows import pair_rows
from mdir_hf.method.significance import log_p_matching

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RECIPE = 1
"""Version of the training; increase it with every change."""

WIDTH, VOCABULARY, SEQUENCE_LENGTH = 64, 1024, 64
ALPHA = 1e-10
N_OUTLIERS, OUTLIER_SIZE = 4, 20.0
N_DRAWS = 20_000


@dataclass(frozen=True)
class Population:
    """Models made in the same way, each with its own seed.

    Attributes:
        name: Description.
        count: Number of models.
        steps: Number of training steps.
        text: ``code`` or ``prose``; the order of batches is the same.
        architecture: transformers' model type.
        outliers: Whether the first channels of the embedding start 20 times as large.
        axes: Basis that the trained model is rotated into, ``principal`` or ``varimax``.
    """

    name: str
    count: int
    steps: int
    text: str = "code"
    architecture: str = "llama"
    outliers: bool = False
    axes: str | None = None


POPULATIONS = (
    Population("untrained", 4, 0),
    Population("half trained", 10, 25),
    Population("same data, same order", 28, 100),
    Population("other data", 8, 100, text="prose"),
    Population("outlier channels", 8, 100, outliers=True),
    Population("GPT-2, tied", 8, 100, architecture="gpt2"),
    Population("principal axes", 8, 100, axes="principal"),
    Population("varimax axes", 8, 100, axes="varimax"),
)


@dataclass(frozen=True)
class Specimen:
    """A trained model."""

    population: Population
    folder: Path
    seed: int

    @property
    def embedding(self) -> torch.Tensor:
        """The embedding, (VOCABULARY, WIDTH), float64."""
        weights = load_file(self.folder / "model.safetensors")
        name = next(name for name in weights if name.endswith(("embed_tokens.weight", "wte.weight")))
        return weights[name].double()

    @property
    def held_out_loss(self) -> float:
        """Loss in nats per token on held-out text."""
        return round(float(json.loads((self.folder / "training.json").read_text())["held_out_loss"]), 3)


def specimens(populations: tuple[Population, ...] = POPULATIONS, root: Path | None = None) -> list[Specimen]:
    """Return all models of some populations, and train missing ones (1.5 s each)."""
    root = root or cache_root() / f"calibration-{RECIPE}"
    seeds = itertools.count(1)
    made = []
    for population in populations:
        for _ in range(population.count):
            seed = next(seeds)
            folder = root / f"{seed:03}-{population.name.replace(' ', '-').replace(',', '')}"
            if not folder.exists():
                _build(population, seed, folder)
            made.append(Specimen(population, folder, seed))
    return made


def _build(population: Population, seed: int, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    text = text_of("bpe", VOCABULARY)
    gpt2 = population.architecture == "gpt2"
    shape = Shape(VOCABULARY, WIDTH, 256 if gpt2 else 160, 2, 4, 4, 16, gpt2)
    with seeded_single_thread(50_000 + seed):
        model = new_model(population.architecture, shape)
        if population.outliers:
            with torch.no_grad():
                model.get_input_embeddings().weight[:, :N_OUTLIERS] *= OUTLIER_SIZE
        if population.steps:
            train(
                model,
                text.learnt[population.text],
                steps=population.steps,
                learning_rate=3e-3,
                batch=(4, SEQUENCE_LENGTH),
            )
        loss = mean_loss(model, text.held_out[population.text], sequence_length=SEQUENCE_LENGTH, n_sequences=32)
        if population.axes is not None:
            _turn(model, population.axes)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as building:
        made = Path(building) / folder.name
        model.save_pretrained(made)
        PreTrainedTokenizerFast(tokenizer_object=text.tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(made)
        (made / "training.json").write_text(json.dumps({"held_out_loss": loss}))
        made.rename(folder)


@torch.no_grad()
def _turn(model: PreTrainedModel, axes: str) -> None:
    rows = model.model.embed_tokens.weight.double()
    rows = rows - rows.mean(0)
    turn = torch.linalg.svd(rows, full_matrices=False).Vh.T
    if axes == "varimax":
        turn = turn @ varimax(rows @ turn)
    rotate_channels(model, turn.float())


def varimax(rows: torch.Tensor, *, n_steps: int = 100) -> torch.Tensor:
    """Return the varimax rotation (n, n), which makes the columns of (m, n) rows as heavy-tailed as possible."""
    turn = torch.eye(rows.shape[1], dtype=rows.dtype)
    for _ in range(n_steps):
        turned = rows @ turn
        pull = rows.T @ (turned**3 - turned * turned.square().mean(0))
        u, _, vh = torch.linalg.svd(pull)
        turn = u @ vh
    return turn


def examine(a: Specimen, b: Specimen, checker: HomologyChecker) -> Row:
    """Results of a pair."""
    left, right = a.embedding, b.embedding
    smallest = min(log_p_of_searches(left, right))
    report = checker.compare(b.folder, describes=True, progress=False)
    return {
        "a": a.seed,
        "b": b.seed,
        "populations": sorted((a.population.name, b.population.name)),
        **fixed_matching(left, right),
        "ln_p_uncut": round(smallest, 2),
        "verdict": report.verdict.value,
        "reason": None if report.reason is None else report.reason.value,
        "log10_p": round(report.log10_p or 0.0, 2),
        "settled_by": report.settled_by,
        "privileged_basis_z": None if report.embedding is None else [round(z, 1) for z in report.embedding.axes_z],
    }


def log_p_of_searches(left: torch.Tensor, right: torch.Tensor) -> Iterator[float]:
    """Yield ln p of each view and gauge group for which a matching is searched, not capped at 0."""
    rows = pair_rows(left, right)
    x, y = row_factors(rows.reference), row_factors(rows.candidate)
    for is_whitened in (False, True):
        factor = polar_factor_of_rows(x, y, whitened=is_whitened)
        for signed in (False, True):
            matching = best_matching(factor.matrix, signed=signed)
            assert matching is not None
            yield _uncut(matching, factor)


def _uncut(matching: Matching, factor: PolarFactor) -> float:
    u = factor.matrix.double().numpy()
    rows = float((u[matching.reference] ** 2).sum())
    columns = float((u[:, matching.candidate] ** 2).sum())
    return log_p_matching(
        float(matching.entries.sum()),
        sizes=(min(u.shape), max(u.shape)),
        energies=(rows, columns) if u.shape[0] <= u.shape[1] else (columns, rows),
        n_matched=len(matching.entries),
        signed=matching.signed,
        is_cut=False,
    )


def fixed_matching(left: torch.Tensor, right: torch.Tensor) -> dict[str, float]:
    """Return the trace of the polar factor over its standard deviation, and the sign votes.

    For random axes the first has mean 0 and standard deviation 1, and ln p <= -z² / 2. Votes are the number of channels
    with a positive sign minus those with a negative one.
    """
    rows = pair_rows(left, right)
    factor = polar_factor_of_rows(row_factors(rows.reference), row_factors(rows.candidate), whitened=False)
    u = factor.matrix.double()
    z = float(u.diagonal().sum() / (u.square().sum() / u.shape[1]).sqrt())
    return {"z": round(z, 4), "votes": int(u.diagonal().sign().sum())}


def haar_exceedances(n: int, levels: tuple[float, ...], *, n_draws: int = 20_000, seed: int = 0) -> dict[str, int]:
    """Count Haar matrices with p at or below each level, for the best of all n! matchings."""
    rng = np.random.default_rng(seed)
    q, r = np.linalg.qr(rng.standard_normal((n_draws, n, n)))
    q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    orders = list(itertools.permutations(range(n)))
    traces = np.max([q[:, np.arange(n), order].sum(axis=1) for order in orders], axis=0)
    ln_p = np.log(len(orders)) - traces**2 / 2
    return {f"{level:g}": int((ln_p <= np.log(level)).sum()) for level in levels}


def describe(specimen: Specimen) -> Row:
    """Return a line of ``calibration-models.jsonl``."""
    name = specimen.population.name
    return {"seed": specimen.seed, "population": name, "held_out_loss": specimen.held_out_loss}


def pair_cases() -> Iterator[Case]:
    """Yield every pair of models."""
    everyone = specimens()
    for a in everyone:
        checker = HomologyChecker.from_pretrained(a.folder, alpha=ALPHA, use_caches=False)
        for b in everyone:
            if b.seed > a.seed:
                yield Case((a.seed, b.seed), partial(examine, a, b, checker))


def count_haar(n: int) -> Row:
    """Return a line of ``calibration-haar.jsonl``."""
    return {"n": n, "n_draws": N_DRAWS, "counts": haar_exceedances(n, (0.3, 0.1, 0.03, 0.01, 0.001), n_draws=N_DRAWS)}


CALIBRATION_MODELS = Benchmark(
    "calibration-models",
    "small models from their own initialisations; missing ones are trained, 1.5 s each",
    ("seed",),
    lambda: (Case((specimen.seed,), partial(describe, specimen)) for specimen in specimens()),
)
CALIBRATION_PAIRS = Benchmark("calibration-pairs", "p of every pair of these models", ("a", "b"), pair_cases)
CALIBRATION_HAAR = Benchmark(
    "calibration-haar",
    "p of the best matching of random rotations",
    ("n",),
    lambda: (Case((n,), partial(count_haar, n)) for n in (2, 3, 4, 5, 6)),
)
