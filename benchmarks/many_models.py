"""A survey of 60 small models of known ancestry over loopback: groups right and wrong, bytes a model, seconds.

    python -m benchmarks.many_models [--workers 2] [--tokens 2048] [--out DIR]

Few are trained (and kept for the next run): two Llamas and two GPT-NeoX of different seeds, fine-tunes and long
continuations of them, and a lineage of a tree, a chain and a star. The others are made from those as people make them:
merged, quantised, converted, pruned, deepened, permuted, rescaled, resized, noised.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM
from transformers.utils import logging

from mdir_hf.demo.transformations import keep_channels
from tests.loopback.hub import FullHub
from tests.trained.lineages import MERGES, PARENT_OF, ROOT, lineage_model
from tests.trained.models import trained_model

Weights = dict[str, torch.Tensor]
EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight", "gpt_neox.embed_in.weight", "embed_out.weight")


def trained() -> dict[str, tuple[Path, str]]:
    """The trained models: folder, and the family that it belongs to."""
    found = {}
    for architecture in ("llama", "gpt-neox"):
        for name in ("base", "fine-tune", "continuation"):
            found[f"{architecture}/{name}"] = (trained_model(architecture, name).folder, architecture)
        found[f"{architecture}-2/base"] = (trained_model(architecture, "other-seed").folder, f"{architecture}-2")
    for name in (*PARENT_OF, *MERGES):
        found[f"llama/{name}"] = (lineage_model(name), "llama")
    assert lineage_model(ROOT) == found["llama/base"][0]
    return found


def noised(weights: Weights, generator: torch.Generator, *, size: float) -> Weights:
    """Noise of so many times its root mean square on every matrix."""
    return {
        name: w + size * w.square().mean().sqrt() * torch.randn(w.shape, generator=generator) if w.ndim == 2 else w
        for name, w in weights.items()
    }


def quantised(weights: Weights, generator: torch.Generator, *, levels: int) -> Weights:
    """Every matrix rounded to levels of groups of 32, and stored as numbers again."""

    def rounded(w: torch.Tensor) -> torch.Tensor:
        groups = w.reshape(-1, 32)
        scale = groups.abs().amax(dim=1, keepdim=True).clamp(min=1e-9) / (levels // 2)
        return ((groups / scale).round() * scale).reshape(w.shape)

    return {name: rounded(w) if w.ndim == 2 and w.numel() % 32 == 0 else w for name, w in weights.items()}


def permuted(weights: Weights, generator: torch.Generator, *, signs: bool = False, scale: float = 1.0) -> Weights:
    """Channels of the embeddings in another order; what the layers do with them is not looked at by a survey."""
    width = next(weights[name].shape[1] for name in EMBEDDINGS if name in weights)
    order = torch.randperm(width, generator=generator)
    turn = torch.where(torch.rand(width, generator=generator) < 0.5, -1.0, 1.0) if signs else torch.ones(width)
    return {name: scale * (w * turn)[:, order] if name in EMBEDDINGS else w for name, w in weights.items()}


def prune(folder: Path, copy: Path, generator: torch.Generator) -> None:
    """Cut a quarter of the channels of a Llama, in every layer."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    width = model.config.hidden_size
    kept = torch.randperm(width, generator=generator)[: 3 * width // 4].sort().values
    keep_channels(model, kept).to(torch.bfloat16).save_pretrained(copy)


def resized(weights: Weights, generator: torch.Generator, *, rows: int) -> Weights:
    """More rows at the mean of the others."""
    more = {n: torch.cat([w, w.mean(dim=0).expand(rows, -1)]) for n, w in weights.items() if n in EMBEDDINGS}
    return {**weights, **more}


PRUNED = "pruned"
CHANGES: dict[str, Callable[..., Weights]] = {
    "noised": lambda w, g: noised(w, g, size=0.3),
    "int4": lambda w, g: quantised(w, g, levels=15),
    "int8": lambda w, g: quantised(w, g, levels=255),
    "permuted": permuted,
    "flipped": lambda w, g: permuted(w, g, signs=True),
    "rescaled": lambda w, g: permuted(w, g, scale=3.0),
    "resized": lambda w, g: resized(w, g, rows=16),
}

MADE = {
    # Which copies are made of which trained model; with the 23 trained ones they are 60.
    "llama/base": ("noised", "int4", "int8", "permuted", "flipped", "rescaled", "pruned", "resized"),
    "llama/fine-tune": ("noised", "int4", "permuted", "flipped", "pruned"),
    "llama/continuation": ("int4", "permuted", "rescaled"),
    "llama-2/base": ("noised", "int4", "permuted", "flipped", "pruned", "resized"),
    "gpt-neox/base": ("noised", "int4", "int8", "permuted", "flipped"),
    "gpt-neox/fine-tune": ("noised", "int4", "permuted", "rescaled"),
    "gpt-neox/continuation": ("permuted", "int8"),
    "gpt-neox-2/base": ("noised", "int8", "permuted", "resized"),
}


def population(place: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield name, folder and family of every model; copies are written below ``place``."""
    known = trained()
    for name, (folder, family) in known.items():
        yield name, folder, family
    for at, (origin, changes) in enumerate(MADE.items()):
        folder, family = known[origin]
        weights = {name: w.float() for name, w in load_file(folder / "model.safetensors").items()}
        for change in changes:
            generator = torch.Generator().manual_seed(100 * at + len(change))
            copy = place / f"{origin.replace('/', '-')}-{change}"
            copy.mkdir()
            for file in folder.glob("*.json"):
                (copy / file.name).write_bytes(file.read_bytes())
            if change == PRUNED:
                prune(folder, copy, generator)
            else:
                made = CHANGES[change](weights, generator)
                save_file({name: w.bfloat16().contiguous() for name, w in made.items()}, copy / "model.safetensors")
            yield f"{family}/{origin.partition('/')[2]}-{change}", copy, family


def main() -> None:
    """Serve, survey, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--tokens", type=int, default=2048, help="rows of every model (default 2048)")
    parser.add_argument("--out", type=Path, help="keep the survey here")
    options = parser.parse_args()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder, FullHub() as hub:
        place = Path(folder)
        os.environ.update(HF_ENDPOINT=hub.endpoint, HF_HOME=str(place / "hf-home"))
        (place / "models").mkdir()
        families: dict[str, str] = {}
        for name, repository, family in population(place / "models"):
            hub.add_repository(name, repository)
            families[name] = family
        survey(options, hub, families, options.out or place / "out")


def cpu_seconds() -> float:
    """Processor time of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def survey(options: argparse.Namespace, hub: FullHub, families: dict[str, str], out: Path) -> None:
    """Survey what is served, and print what came out."""
    # Only now: the Hub client reads its environment when it is first imported.
    from mdir_hf.survey.engines import open_engine
    from mdir_hf.survey.run import SurveyPlan, run_survey
    from mdir_hf.survey.saving import save_survey

    hub.requests.clear()
    started, cpu_before = time.perf_counter(), cpu_seconds()
    with open_engine(workers=options.workers) as engine:
        plan = SurveyPlan(tuple(families), n_tokens=options.tokens, progress=False)
        report = run_survey(plan, out, engine=engine)
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu_before
    expected = {frozenset(n for n in families if families[n] == family) for family in set(families.values())}
    wrong = [pair for pair in report.pairs if report.is_related(*pair) != (families[pair[0]] == families[pair[1]])]
    found = {frozenset(group) for group in report.groups()}
    ranges = [request for request in hub.requests if request.range and request.origin == "cdn"]
    stored = sum(hub.find(name).commits[hub.find(name).revisions["main"]]["model.safetensors"].n_bytes
                 for name in families)  # fmt: skip
    print(f"{len(families)} models in {len(expected)} families, {len(report.pairs)} pairs, {options.tokens} tokens")
    print(f"groups right: {len(found & expected)} of {len(expected)}; pairs wrong: {len(wrong)} of {len(report.pairs)}")
    for a, b in wrong:
        print(f"  {a} ~ {b}: {report.pairs[a, b].verdict}, log10 p = {report.pairs[a, b].log10_p:.1f}")
    for name, model in report.models.items():
        if model.error:
            print(f"  not read: {name}: {model.error}")
    sent = sum(request.bytes_sent for request in ranges)
    print(
        f"weights read: {sent / len(families) / 1e3:.0f} kB a model of {stored / len(families) / 1e3:.0f} kB, ", end=""
    )
    rows = sum(int(m.model.hidden_size or 0) * options.tokens * 2 for m in report.models.values() if m.model)
    print(f"{sent / rows:.2f} times its sampled rows; {len(ranges) / len(families):.1f} requests a model")
    print(
        f"survey: {seconds:.0f} s by the clock and {cpu:.0f} s of processor with {options.workers} processes; ", end=""
    )
    print(f"{1e3 * cpu / len(report.pairs):.0f} ms of processor a pair")
    save_survey(report, out)


if __name__ == "__main__":
    main()
