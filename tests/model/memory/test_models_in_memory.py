"""Models in memory and their saved folders give the same tensors, the same verdict and the same p."""

import copy
import os
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch

from mdir_hf import HomologyChecker, HomologyReport
from mdir_hf.errors import ByteBudgetError, InputError
from mdir_hf.model.files import MemorySource
from mdir_hf.model.memory import load_model
from mdir_hf.model.memory.saved import PlacedParameter, SavedParameters
from mdir_hf.render.description import describe
from tests.benchmarks.evidence import WITH_THE_SCRIPTS
from tests.conformance_tensors import TensorSourceConformance
from tests.specimens import tokenizer_json, tokens

transformers = pytest.importorskip("transformers")

N_TOKENS = 400
WIDTH = {"hidden_size": 48, "intermediate_size": 128, "head_dim": 12, "vocab_size": N_TOKENS}
SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 36,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_experts": 3,
    "num_local_experts": 3,
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": N_TOKENS, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 16, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def quiet():
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about generation settings of a handmade config
        yield


@pytest.fixture(scope="module")
def tokenizer():
    import json

    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(json.dumps(tokenizer_json(tokens(N_TOKENS))))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


def build(family="llama", seed=0, **more):
    torch.manual_seed(seed)
    config = transformers.CONFIG_MAPPING[family](**((GPT2 if family == "gpt2" else SIZES | WIDTH) | more))
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@torch.no_grad()
def drifted(model, share=0.02):
    other = copy.deepcopy(model)
    torch.manual_seed(7)
    for weight in other.parameters():
        if weight.ndim > 1:
            weight += share * weight.std() * torch.randn_like(weight)
    return other


def compare(reference, candidate, *, level="auto", **options):
    own = {name: options.pop(name) for name in ("tokenizer", "adapter") if name in options}
    checker = HomologyChecker.from_pretrained(reference, **own)
    return checker.compare(candidate, level=level, progress=False, **own, **options)


def findings(report):
    # Each comparison samples its own neurons; p is the same if all neurons match.
    return (report.verdict, report.log10_p, report.embedding, report.unembedding, report.layers, report.modules)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("gpt2", {}),  # transposed matrices, tied
        ("mixtral", {}),  # separate experts on disk, fused in memory
        pytest.param("gemma3_text", {"tie_word_embeddings": True}, marks=pytest.mark.slow),
        pytest.param("phi3", {}, marks=pytest.mark.slow),  # fused q, k and v
        pytest.param("qwen2_moe", {"moe_intermediate_size": 96}, marks=pytest.mark.slow),
        pytest.param("gpt_neox", {}, marks=pytest.mark.slow),
    ],
)
def test_a_model_in_memory_gives_the_result_of_its_folder(family, more, tokenizer, tmp_path):
    model = build(family, **more)
    other = drifted(model)
    for name, one in (("a", model), ("b", other)):
        one.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    folders = compare(tmp_path / "a", tmp_path / "b", level="layers")
    memory = compare(model, other, level="layers", tokenizer=tokenizer)
    assert findings(memory) == findings(folders)
    assert memory.verdict == "homologous"
    assert (
        "A model in memory cannot be opened again by name"
        in next(s for s in describe(memory) if s.kind == "reproduce").paragraphs[0]
    )
    assert findings(compare(tmp_path / "a", other, level="layers", tokenizer=tokenizer)) == findings(folders)


def assert_as_saved(model, folder):
    """Compare every tensor of the saved file by name and bit by bit, including rows."""
    model.save_pretrained(folder)
    saved = safetensors.torch.load_file(folder / "model.safetensors")
    tensors = load_model(model).tensors
    assert tensors.names() == tuple(sorted(saved))
    for name, tensor in saved.items():
        assert torch.equal(tensors.read_stored(name), tensor)
        assert tensors.spec(name).shape == tuple(tensor.shape)
        if tensor.ndim > 1:
            rows = np.array([tensor.shape[0] - 1, 0])
            assert torch.equal(tensors.read_stored_rows(name, rows), tensor.reshape(-1, tensor.shape[-1])[rows])


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=WITH_THE_SCRIPTS)], ids=["every fourth", "all"])
def test_classes_have_in_memory_what_they_save(tmp_path, step):
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from tests.model.roles.tiny_causal import build_module

    n_read = 0
    for model_type in list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)[::step]:
        try:
            model = build_module(model_type)
            model.save_pretrained(tmp_path / model_type)
        except Exception:  # transformers cannot build or save it: benchmarks/coverage.py lists it
            continue
        assert_as_saved(model, tmp_path / model_type)
        n_read += 1
    assert n_read > 100 // step


def test_tied_weights_stand_once_and_loading_changes_no_name(tmp_path):
    assert_as_saved(build("gpt2"), tmp_path / "gpt2")
    build("mixtral").save_pretrained(tmp_path / "mixtral")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "mixtral", dtype=torch.bfloat16)
    assert_as_saved(loaded, tmp_path / "again")


def test_a_fused_group_is_made_again_after_training_changed_it():
    model = build("mixtral")
    tensors = load_model(model).tensors
    name = next(name for name in tensors.names() if "experts.1." in name)
    before = tensors.read(name)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1
    assert torch.equal(tensors.read(name), before + 1)


def test_rows_cost_rows_and_the_cap_on_bytes_holds(tokenizer):
    model = build()
    report = compare(model, drifted(model), tokenizer=tokenizer)
    n_values = 2 * 2 * WIDTH["intermediate_size"] * WIDTH["hidden_size"]  # gate and up in two layers
    assert 0 < report.io.bytes_read <= 2 * n_values * 4
    with pytest.raises(ByteBudgetError, match="bytes allowed"):
        compare(model, drifted(model), tokenizer=tokenizer, level="layers", max_bytes=1000)


def test_wrapped_models_are_unwrapped():
    model = build()
    names = load_model(model).tensors.names()
    parallel, compiled = torch.nn.Module(), torch.nn.Module()
    parallel.module, compiled._orig_mod = model, model  # the attributes of DistributedDataParallel and torch.compile
    assert load_model(compiled).tensors.names() == names
    assert load_model(parallel).tensors.names() == names


@pytest.mark.parametrize(
    ("options", "message"),
    [({"revision": "main"}, "revision='main'"), ({"variant": "fp16"}, "variant"), ({"bases": ("a/b@c",)}, "bases")],
)
def test_options_for_repositories_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        HomologyChecker.from_pretrained(build(), **options)


def test_other_objects_than_models_are_refused_with_the_expected_type():
    with pytest.raises(InputError, match=r"cannot compare a Linear; expected .* PreTrainedModel"):
        HomologyChecker.from_pretrained(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="tokenizer is a int; expected a tokenizer"):
        HomologyChecker.from_pretrained(build(), tokenizer=3)


class TestOffloadedTensors(TensorSourceConformance):
    """Tensors requested one by one, as for an offloaded model."""

    def make(self, tensors, tmp_path):
        outlines = {name: PlacedParameter(name, tensor).outline() for name, tensor in tensors.items()}
        return MemorySource(Fetched(tensors), outlines=outlines)


class Fetched(dict):
    """Weights stored elsewhere: each access returns a new copy."""

    def __getitem__(self, name):
        return super().__getitem__(name).clone()


@pytest.mark.parametrize("to", ["cpu", "disk"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_offloaded_parameters_are_read_where_they_are(family, to, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model = build(family)
    expected = {name: tensor.clone() for name, tensor in load_stored(model).items()}
    if to == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu")
    else:
        accelerate.disk_offload(model, tmp_path, execution_device="cpu")
    assert any(parameter.device.type == "meta" for parameter in model.parameters())
    stored = load_stored(model)
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())
    assert any(parameter.device.type == "meta" for parameter in model.parameters())  # none was loaded permanently


def load_stored(model, **options):
    tensors = load_model(model, **options).tensors
    return {name: tensors.read_stored(name) for name in tensors.names()}


def test_a_model_dispatched_by_a_device_map_is_read(tmp_path):
    pytest.importorskip("accelerate")
    model = build()
    model.save_pretrained(tmp_path / "model")
    expected = load_stored(model)
    parts = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    layers = {f"model.layers.{i}": to for i, to in enumerate(("cpu", "disk"))}
    dispatched = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=parts | layers, offload_folder=tmp_path / "offload"
    )
    assert dispatched.model.layers[1].mlp.up_proj.weight.device.type == "meta"
    stored = load_stored(dispatched)
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())


def test_meta_tensors_without_a_hook_are_refused():
    model = build().to("meta")
    with pytest.raises(InputError, match="on the meta device, and no accelerate hook"):
        compare(model, build())


def test_shards_of_fsdp2_are_gathered_one_at_a_time():
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    model = build("mixtral")
    expected = {name: tensor.clone() for name, tensor in load_stored(model).items()}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert isinstance(next(model.parameters()), DTensor)
        stored = load_stored(model)
    finally:
        dist.destroy_process_group()
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")
def test_ranks_that_share_two_models_agree_with_one_process(tmp_path, tokenizer):
    """All ranks must request the same shards in the same order; otherwise the transport fails."""
    import subprocess
    import sys

    mine = build(num_hidden_layers=6)
    folders = [str(tmp_path / name) for name in ("mine", "other")]
    for folder, model in zip(folders, (mine, drifted(mine)), strict=True):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    expected = HomologyChecker.from_pretrained(folders[0]).compare(folders[1], level="paper")
    command = [sys.executable, "-m", "tests.model.memory.rank", str(tmp_path), *folders]
    subprocess.run(command, check=True, timeout=300)
    said = [(tmp_path / f"{rank}.json").read_text() for rank in range(2)]
    for report in map(HomologyReport.from_json, said):
        assert report.verdict is expected.verdict
        assert report.log10_p == pytest.approx(expected.log10_p)
        assert len(report.layers.matches) == len(expected.layers.matches) == 6
        assert len(report.modules) == len(expected.modules)


def test_deepspeeds_own_context_gathers_shards_of_zero(monkeypatch):
    """DeepSpeed is not installed here; the test checks that its context is entered with the parameter to read."""
    import contextlib
    import sys
    import types

    model = build()
    whole = model.model.embed_tokens.weight.detach().clone()
    weight = model.model.embed_tokens.weight
    weight.ds_id, weight.ds_shape, weight.data = 3, whole.shape, torch.empty(0)
    entered = []

    @contextlib.contextmanager
    def gathered(parameters):
        entered.append(parameters)
        parameters[0].data = whole
        yield
        parameters[0].data = torch.empty(0)

    fake = types.SimpleNamespace(zero=types.SimpleNamespace(GatheredParameters=gathered))
    monkeypatch.setitem(sys.modules, "deepspeed", fake)
    tensors = load_model(model).tensors
    assert tensors.spec("model.embed_tokens.weight").shape == tuple(whole.shape)
    assert torch.equal(tensors.read("model.embed_tokens.weight"), whole)
    assert [[id(one) for one in parameters] for parameters in entered] == [[id(weight)]]


class TestAdapters:
    @pytest.fixture(autouse=True)
    def peft(self):
        return pytest.importorskip("peft")

    def adapted(self, model, **more):
        import peft

        torch.manual_seed(3)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], **more)
        adapted = peft.get_peft_model(copy.deepcopy(model), config)
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "lora_" in name:
                    weight.normal_(std=0.1)
        return adapted

    @pytest.mark.parametrize("more", [{}, {"use_dora": True}, {"use_rslora": True}, {"modules_to_save": ["lm_head"]}])
    def test_a_model_with_its_adapter_equals_the_adapters_folder(self, more, tokenizer, tmp_path):
        model = build()
        adapted = self.adapted(model, **more)
        model.save_pretrained(tmp_path / "base")
        tokenizer.save_pretrained(tmp_path / "base")
        adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
        adapted.save_pretrained(tmp_path / "adapter")
        folders = compare(tmp_path / "base", tmp_path / "adapter", level="layers")
        assert findings(compare(model, adapted, level="layers", tokenizer=tokenizer)) == findings(folders)
        assert any("an adapter (" in caveat for caveat in folders.caveats)

    def test_a_model_without_its_adapter_equals_its_base(self, tokenizer):
        model = build()
        adapted = self.adapted(model)
        expected = load_stored(model)
        for stored in (load_stored(adapted, adapter=False), load_stored(adapted.get_base_model())):
            assert stored.keys() == expected.keys()
            assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())

    def test_two_active_adapters_add_up(self):
        import peft

        from mdir_hf.model.open import NamedModel, Reading

        adapted = self.adapted(build())
        adapted.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"]))
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "second" in name:
                    weight.normal_(std=0.1)
        adapted.base_model.set_adapter(["default", "second"])
        read = NamedModel(load_model(adapted)).open(Reading()).tensors.read("model.layers.0.self_attn.q_proj.weight")
        merged = adapted.merge_and_unload().model.layers[0].self_attn.q_proj.weight
        assert torch.allclose(read, merged, atol=1e-6)

    def test_an_adapter_of_transformers_itself_counts_too(self):
        import peft

        from mdir_hf.model.open import NamedModel, Reading

        model = build()
        base = model.model.layers[0].self_attn.q_proj.weight.detach().clone()
        model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
        name = "model.layers.0.self_attn.q_proj.weight"
        assert not torch.equal(NamedModel(load_model(model)).open(Reading()).tensors.read(name), base)
        assert torch.equal(load_model(model, adapter=False).tensors.read(name), base)

    def test_a_merged_adapter_is_read_only_as_merged(self):
        adapted = self.adapted(build())
        adapted.merge_adapter()
        name = "model.layers.0.self_attn.q_proj.weight"
        layer = adapted.get_base_model().model.layers[0].self_attn.q_proj
        assert torch.equal(load_model(adapted).tensors.read(name), layer.base_layer.weight)
        with pytest.raises(InputError, match="merged into the weights"):
            load_model(adapted, adapter=False)


def test_layers_of_bitsandbytes_are_dequantised_in_place():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    from mdir_hf.model.open import NamedModel, Reading

    model = build(hidden_size=64)  # on a CPU, bitsandbytes decodes rows of 48 with scales of other blocks
    expected = {}
    for layer in model.model.layers:
        weight = layer.mlp.up_proj.weight.detach()
        layer.mlp.up_proj = bitsandbytes.nn.Linear4bit(weight.shape[1], weight.shape[0], bias=False, quant_type="nf4")
        layer.mlp.up_proj.load_state_dict({"weight": weight})
        layer.mlp.up_proj = layer.mlp.up_proj.to("cpu")
        quantised = layer.mlp.up_proj.weight
        expected[len(expected)] = bitsandbytes.functional.dequantize_4bit(quantised.data, quantised.quant_state)
    opened = NamedModel(load_model(model)).open(Reading()).tensors
    for number, weight in expected.items():
        assert torch.allclose(opened.read(f"model.layers.{number}.mlp.up_proj.weight"), weight.float(), atol=1e-6)
    assert "bitsandbytes" in opened.description.quantization


def test_parameters_are_not_copied():
    model = build()
    saved = SavedParameters(
        model, {name: PlacedParameter(name, t) for name, t in model.state_dict(keep_vars=True).items()}
    )
    weight = model.model.embed_tokens.weight
    assert saved["model.embed_tokens.weight"].data_ptr() == weight.data_ptr()
