"""A comparison reads at most as much as its plan says, whatever the relation of the models."""

import pytest
import torch

from mdir_hf import HomologyChecker
from mdir_hf.report import Level
from tests.specimens import gaussian, mlp_tensors, tokens, write_model

V, N, N_LAYERS, N_NEURONS = 1500, 64, 6, 256
CONFIG = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "num_attention_heads": 4}


def layers(seed, *, noise=0.0, order=None):
    tensors = {}
    for at in range(N_LAYERS):
        for j, name in enumerate("qkvo"):
            tensors[f"model.layers.{at}.self_attn.{name}_proj.weight"] = gaussian(N, N, seed + 10 * at + j)
        tensors |= mlp_tensors(N, N_NEURONS, seed + 1000 + 10 * at, layer=at)
    for j, (name, tensor) in enumerate(tensors.items()):
        if order is not None and ".mlp." in name:
            tensor = tensor[:, order] if "down" in name else tensor[order]
        tensors[name] = tensor + noise * gaussian(*tensor.shape, 7000 + j)
    return tensors


def candidate(kind, folder):
    """Write a changed copy of the base, or a stranger."""
    shuffled = torch.randperm(V, generator=torch.Generator().manual_seed(3))
    reordered = torch.randperm(N_NEURONS, generator=torch.Generator().manual_seed(4))
    rows = gaussian(V, N, 0)
    words = tokens(V)
    further = layers(0, noise=0.3)
    if kind == "stranger":
        rows, further = gaussian(V, N, 5), layers(50_000)
    elif kind == "stranger with another tokenizer":
        rows, further = gaussian(V, N, 5), layers(50_000)
        words = [f"w{2 * int(number)}" for number in shuffled]
    elif kind == "other tokenizer":
        rows, words = rows[shuffled], [f"w{number}" for number in shuffled]
    elif kind == "other embeddings":
        rows = gaussian(V, N, 6)
    elif kind == "noise and other order of neurons":
        rows, further = rows + 2.0 * gaussian(V, N, 7), layers(0, noise=2.0, order=reordered)
    return write_model(folder, rows, words=words, config=CONFIG, further=further)


KINDS = (
    "stranger",
    "stranger with another tokenizer",
    "other tokenizer",
    "other embeddings",
    "noise and other order of neurons",
    "copy with noise",
)


@pytest.mark.parametrize(
    ("level", "kind"),
    # Every kind at level auto, which chooses what to read; other levels only on a stranger, which is read to the end.
    [*((Level.AUTO, kind) for kind in KINDS), *((level, "stranger") for level in Level if level is not Level.AUTO)],
)
def test_no_more_is_read_than_planned(tmp_path, level, kind):
    base = write_model(tmp_path / "base", gaussian(V, N, 0), config=CONFIG, further=layers(0))
    other = candidate(kind, tmp_path / "other")
    plan = HomologyChecker.from_pretrained(base).plan(other, level=level)
    report = HomologyChecker.from_pretrained(base).compare(other, level=level, progress=False)
    least, most = report.io.bytes_planned
    assert least <= report.io.bytes_read <= most
    # The plan shown before the comparison agrees with the one in the report.
    assert plan.n_bytes == pytest.approx((least, most), rel=0.05)


def test_the_bound_counts_the_experts_that_are_compared_last(tmp_path):
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2}
    most = []
    for n_experts in (2, 12):
        for seed in (0, 1):
            torch.manual_seed(seed)
            config = MixtralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, num_local_experts=n_experts)
            MixtralForCausalLM(config).save_pretrained(tmp_path / f"{n_experts}-{seed}")
        checker = HomologyChecker.from_pretrained(tmp_path / f"{n_experts}-0", use_caches=False)
        plan = checker.plan(tmp_path / f"{n_experts}-1")
        report = checker.compare(tmp_path / f"{n_experts}-1", progress=False)
        assert report.io.bytes_read <= plan.n_bytes[1]
        most.append(dict(plan.steps)["parts"])
    assert most[0] < most[1]


def test_level_layers_reads_few_bytes_between_the_sampled_rows_of_local_files(tmp_path):
    width, n_neurons, n_layers = 512, 4096, 4
    further = {}
    for at in range(n_layers):
        further |= mlp_tensors(width, n_neurons, 100 * at, layer=at)
        for j, name in enumerate("qkvo"):
            further[f"model.layers.{at}.self_attn.{name}_proj.weight"] = gaussian(width, width, 100 * at + 20 + j)
    tuned = {
        name: tensor + 0.002 * gaussian(*tensor.shape, 9000 + j) for j, (name, tensor) in enumerate(further.items())
    }
    folders = [
        write_model(tmp_path / name, gaussian(V, width, 0), config=CONFIG | {"hidden_size": width}, further=tensors)
        for name, tensors in (("base", further), ("tuned", tuned))
    ]
    checker = HomologyChecker.from_pretrained(folders[0])
    report = checker.compare(folders[1], level=Level.LAYERS, progress=False)
    n_bytes = report.io.bytes_read - report.io.bytes_planned[0]
    gate_and_up = 2 * 2 * 2 * n_layers * n_neurons * width
    assert n_bytes < gate_and_up / 4
