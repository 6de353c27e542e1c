"""Whole comparisons over a failing Hub: errors are retried, within a bounded number of requests."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf.comparison.api import HomologyChecker, compare
from mdir_hf.comparison.projections.analysis import compare_layers_in_place
from mdir_hf.errors import GatedRepositoryError
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.report import Outcome
from tests.loopback.faults import Fault
from tests.loopback.traffic import in_sequence
from tests.specimens import tokenizer_json, tokens

N_ROWS, WIDTH, N_LAYERS = 8000, 256, 4
HEAD_ROWS = 64


def write_sharded(folder, *, seed, of=None, noise=0.0):
    """Write a Llama with two shards and an untied head, or a near copy of another one.

    Args:
        folder: Output folder.
        seed: Seed of its weights, or of the noise.
        of: The model to copy.
        noise: Strength of the noise, in units of the weights' standard deviation.
    """
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    shapes = {"model.embed_tokens.weight": (N_ROWS, WIDTH), "lm_head.weight": (N_ROWS, WIDTH)}
    for layer in range(N_LAYERS):
        for name, shape in {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}.items():
            shapes[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = shape
        for name, shape in {"gate": (512, WIDTH), "up": (512, WIDTH), "down": (WIDTH, 512)}.items():
            shapes[f"model.layers.{layer}.mlp.{name}_proj.weight"] = shape
    known = {} if of is None else {k: v for p in of.glob("*.safetensors") for k, v in load_file(p).items()}
    tensors = {}
    for name, shape in shapes.items():
        drawn = 0.02 * torch.randn(shape, generator=generator)
        tensors[name] = (drawn if of is None else known[name].float() + noise * drawn).to(torch.bfloat16)
    shards = [{}, {}]
    for name, tensor in tensors.items():
        is_late = name == "lm_head.weight" or any(f".{late}." in name for late in range(N_LAYERS // 2, N_LAYERS))
        shards[is_late][name] = tensor
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        path = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / path)
        weight_map |= dict.fromkeys(shard, path)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(N_ROWS))))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "of": seed})
    )
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "vocab_size": N_ROWS}
    config |= {"num_hidden_layers": N_LAYERS, "num_attention_heads": 8, "tie_word_embeddings": False, "seed": seed}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_llama(folder, *, width, n_neurons, n_layers, noise_on=None):
    """Write a Llama of Gaussian weights, or a copy of one with noise of 30 %."""
    folder.mkdir()
    n_heads = max(1, width // HEAD_ROWS)
    n_kv = min(8, n_heads)
    kv = n_kv * (width // n_heads)
    shapes = {
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (kv, width), "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (width, width), "mlp.gate_proj": (n_neurons, width), "mlp.up_proj": (n_neurons, width),
        "mlp.down_proj": (width, n_neurons),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    noise_generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(64, width, generator=generator)
    tensors = {"model.embed_tokens.weight": embedding.bfloat16()}
    tensors["model.norm.weight"] = torch.ones(width).bfloat16()
    for layer in range(n_layers):
        for name, sizes in shapes.items():
            weight = torch.randn(sizes, generator=generator)
            if noise_on is not None:
                weight += 0.3 * torch.randn(sizes, generator=noise_generator)
            tensors[f"model.layers.{layer}.{name}.weight"] = weight.bfloat16()
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(width).bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width, "vocab_size": 64,
        "intermediate_size": n_neurons, "num_hidden_layers": n_layers, "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sharded")
    original = write_sharded(root / "original", seed=1)
    return original, write_sharded(root / "copy", seed=2, of=original, noise=0.05)


@pytest.fixture
def pair(loopback_hub, folders):
    for name, folder in zip(("a/original", "b/copy"), folders, strict=True):
        loopback_hub.add_repository(name, folder)
    return "a/original", "b/copy"


def compared(names, **options):
    return compare(*names, progress=False, **options)


def verdict(names, **options):
    return compared(names, **options).verdict.value


@pytest.mark.parametrize("state", ["unreachable", "failing", "silent"])
def test_storage_that_cannot_be_reached_is_not_needed(loopback_hub, folders, pair, state):
    loopback_hub.stores_in_xet, loopback_hub.cas = True, state
    # A tokenizer too large to be stored in git.
    for folder, name in zip(folders, pair, strict=True):
        stored = loopback_hub.find(name).commits[loopback_hub.find(name).revisions["main"]]
        stored["tokenizer.json"] = type(stored["tokenizer.json"])(folder / "tokenizer.json", 117_982, is_lfs=True)
    assert verdict(pair, describes=True) == "homologous"
    assert not loopback_hub.sent(path="/cas/") and not loopback_hub.sent(path="xet-read-token")
    assert [request for request in loopback_hub.sent("cdn", "tokenizer.json") if request.status == 206]


def test_addresses_that_expire_during_a_comparison_are_renewed(loopback_hub, pair):
    assert verdict(pair, on_plan=lambda plan: loopback_hub.expire_locations()) == "homologous"
    refused = [request for request in loopback_hub.sent("cdn") if request.status == 403]
    asked = [request for request in loopback_hub.sent("hub") if request.method == "HEAD"]
    assert refused
    # One request for each shard, and one more for shards that are read again later. Layers are sampled at random.
    assert 4 < len(asked) <= 4 + 4


def test_rate_limits_of_the_hub_are_respected(loopback_hub, pair, waits):
    headers = {"RateLimit": '"resolvers";r=0;t=7', "RateLimit-Policy": '"fixed window";"resolvers";q=3000;w=300'}
    loopback_hub.faults += [
        Fault("status", origin="hub", path=path, status=429, headers=headers)
        for path in ("/api/models/a/original", "config.json", "tokenizer.json", "00001-of-00002")
    ]
    assert verdict(pair, describes=True) == "homologous"
    # Waits last as long as the answers say, plus at most a second. They run in parallel, not one after another.
    assert len(waits) >= 4
    assert all(7.0 <= wait_s <= 8.0 for wait_s in waits)


def test_identical_weights_cost_no_tokenizer(loopback_hub, folders):
    for name in ("a/original", "a/mirror"):
        loopback_hub.add_repository(name, folders[0])
    report = compared(("a/original", "a/mirror"))
    assert (report.verdict.value, report.settled_by.value) == ("homologous", "identical_files")
    assert not loopback_hub.sent(path="tokenizer")


def test_both_models_are_requested_at_once(loopback_hub, pair):
    loopback_hub.network.round_trip_s = 0.2
    assert verdict(pair) == "homologous"
    first, second = sorted(loopback_hub.sent("hub", "/api/models/"), key=lambda request: request.began)[:2]
    assert second.began < first.ended


def test_if_both_models_cannot_be_opened_the_reference_is_named(loopback_hub, folders):
    for name in ("a/gated", "b/gated"):
        loopback_hub.add_repository(name, folders[0], gated=True)
    loopback_hub.faults.append(Fault("slow", path="/a/gated/", delay_s=0.1, times=None))
    with pytest.raises(GatedRepositoryError, match=r"^a/gated"):
        compared(("a/gated", "b/gated"))


def test_a_checker_asks_for_the_vocabulary_once(loopback_hub, pair):
    loopback_hub.network.round_trip_s = 0.05
    checker = HomologyChecker.from_pretrained(pair[0], use_caches=False)
    assert not loopback_hub.sent(path="tokenizer.json")
    for _ in range(2):
        assert checker.compare(pair[1], describes=True, progress=False).verdict.value == "homologous"
    asked = loopback_hub.sent(path="tokenizer.json")
    assert [request.status for request in asked] == [307, 206]
    assert "a/original" in asked[0].path  # the content is the same in both


def test_rows_of_all_projections_are_fetched_side_by_side(loopback_hub, tmp_path):
    sizes = {"width": 512, "n_neurons": 1536, "n_layers": 4}
    base = write_llama(tmp_path / "base", **sizes)
    loopback_hub.add_repository("lab/base", base)
    loopback_hub.add_repository("lab/noised", write_llama(tmp_path / "noised", **sizes, noise_on=base))
    models = [Model(open_repository(f"lab/{name}")) for name in ("base", "noised")]
    loopback_hub.requests.clear()
    loopback_hub.network.round_trip_s = 0.05
    analysis = compare_layers_in_place(models[0], models[1], (ResidualBasisMap.identity(512),))
    assert {result.outcome for result in analysis.table.results} == {Outcome.KEPT}
    # For each model: one run of o, gate, up and down, two of q, k and v, and two norms.
    assert len(loopback_hub.requests) <= 2 * sizes["n_layers"] * (4 + 2 * 3 + 2)
    assert in_sequence(loopback_hub.requests) <= 12
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.safetensors")]
    assert sum(request.bytes_sent for request in loopback_hub.requests) < 0.5 * sum(sizes)
