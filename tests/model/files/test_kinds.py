"""The header of a weight file tells its contents: a model, factors, an optimizer's state, a rank's slice."""

import json

import pytest
import torch

from mdir_hf.errors import NoWeightsError, SeveralModelsError, UnsupportedFormatError
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.files.choosing import files_beside
from mdir_hf.model.files.kinds import factor_pairs
from tests.conformance_tensors import MemoryTree, safetensors_bytes
from tests.model.files.pytorch.archives import saved

WIDTH, RANK = 32, 2
FACTOR_NAMES = {
    "torchtune": ("layers.{}.attn.q_proj.lora_a.weight", "layers.{}.attn.q_proj.lora_b.weight"),
    "peft": ("base.layers.{}.q_proj.lora_A.default.weight", "base.layers.{}.q_proj.lora_B.default.weight"),
    "kohya": ("lora_te_layers.{}.q.lora_down.weight", "lora_te_layers.{}.q.lora_up.weight"),
    "of tomorrow": ("x.{}.query.inwards.weight", "x.{}.query.outwards.weight"),
}


def factors(kind="torchtune", n_layers=2):
    a, b = FACTOR_NAMES[kind]
    made = {a.format(i): torch.randn(RANK, WIDTH) for i in range(n_layers)}
    return made | {b.format(i): torch.randn(WIDTH, RANK) for i in range(n_layers)}


def model(n_layers=2):
    layer = {"up_proj.weight": (48, WIDTH), "down_proj.weight": (WIDTH, 48)}
    made = {f"layers.{i}.mlp.{name}": torch.randn(shape) for i in range(n_layers) for name, shape in layer.items()}
    return {"embed_tokens.weight": torch.randn(60, WIDTH), **made}


OPTIMIZER = {"optimizer": {"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(3, 4)}}, "param_groups": []}}


@pytest.mark.parametrize("kind", FACTOR_NAMES)
@pytest.mark.parametrize("write", [saved, safetensors_bytes], ids=["pickle", "safetensors"])
def test_factors_alone_are_an_adapter_whatever_their_names(kind, write):
    suffix = "pt" if write is saved else "safetensors"
    with pytest.raises(UnsupportedFormatError, match=r"only the factors of an adapter \(2 modules, rank 2\)"):
        open_checkpoint(MemoryTree({f"model.{suffix}": write(factors(kind))}))


def test_a_model_with_thin_matrices_is_no_adapter():
    assert not factor_pairs({name: tuple(tensor.shape) for name, tensor in model().items()})
    thin = {"layers.0.mlp.up.weight": (2, WIDTH), "layers.0.mlp.down.weight": (WIDTH, 2)}
    assert not factor_pairs({**thin, "layers.0.attn.o.weight": (WIDTH, WIDTH)})


OTHER_CHANGES = {
    "LoHa": ["m_{}_up.hada_w1_a", "m_{}_up.hada_w1_b", "m_{}_up.hada_w2_a", "m_{}_up.hada_w2_b", "m_{}_up.alpha"],
    "LoKr": ["layers.{}.up.lokr_w1", "layers.{}.up.lokr_w2_a", "layers.{}.up.lokr_w2_b"],
    "IA3": ["base_model.model.layers.{}.k_proj.ia3_l"],
    "differences": ["layers.{}.mlp.up_proj.weight_diff"],
}


@pytest.mark.parametrize("kind", OTHER_CHANGES)
@pytest.mark.parametrize("write", [saved, safetensors_bytes], ids=["pickle", "safetensors"])
def test_changes_that_are_no_factors_are_not_read_as_a_model(kind, write):
    tensors = {name.format(layer): torch.randn(8, WIDTH) for name in OTHER_CHANGES[kind] for layer in range(2)}
    with pytest.raises(UnsupportedFormatError, match="only an adapter's changes to a base model; merge them"):
        open_checkpoint(MemoryTree({f"model.{'pt' if write is saved else 'safetensors'}": write(tensors)}))


@pytest.mark.parametrize("moments", [("exp_avg", "exp_avg_sq"), ("m", "v")], ids=["torch", "mlx"])
def test_an_optimizer_in_a_weight_file_is_not_read_as_a_model(moments):
    states = {f"{name}.{moment}": tensor.clone() for name, tensor in model().items() for moment in moments}
    files = {"state.safetensors": safetensors_bytes(states | {"step": torch.ones(1)})}
    with pytest.raises(UnsupportedFormatError, match="holds only the state of an optimizer; name the file"):
        open_checkpoint(MemoryTree(files))
    assert open_checkpoint(MemoryTree({"x.safetensors": safetensors_bytes(states | model())})).names()
    files["weights.safetensors"] = safetensors_bytes(model())
    assert open_checkpoint(MemoryTree(files)).paths == ("weights.safetensors",)


@pytest.mark.parametrize(
    ("tensors", "contents"),
    [
        ({f"layers.{i}.flat_param": torch.zeros(99) for i in range(2)}, "flat vectors of FSDP"),
        (dict.fromkeys(model(), torch.zeros(0)), "empty placeholders, as DeepSpeed's ZeRO stage 3 leaves"),
    ],
    ids=["flat", "empty"],
)
def test_a_file_that_needs_other_ranks_is_not_read_as_a_model(tensors, contents):
    with pytest.raises(UnsupportedFormatError, match=f"holds only {contents}.*; save the whole state dict on one rank"):
        open_checkpoint(MemoryTree({"pytorch_model.bin": saved(tensors)}))


def test_averaged_weights_beside_a_state_dict_are_mentioned():
    files = {"last.ckpt": saved({"model": model(), "ema": model(), **OPTIMIZER, "epoch": 3})}
    source = open_checkpoint(MemoryTree(files))
    assert set(source.names()) == set(model())
    assert source.description.notes == ("not read in last.ckpt, beside the model: ema, optimizer",)


NAMES = (
    *("optimus-1b.pth", "explora-1b.pth", "nevaeh.pt", "model_optim_rng.pt", "pytorch_model_lora_merged.bin"),
    *("scheduler.pt", "x.ckpt", "training_args.bin", "weights.bin"),
)


@pytest.mark.parametrize("name", NAMES)
def test_no_file_is_skipped_because_of_its_name(name):
    source = open_checkpoint(MemoryTree({name: saved(model()), "other.pt": saved(OPTIMIZER), "rng.pth": b""}))
    assert source.paths == (name,)
    (note,) = source.description.notes
    assert "other.pt (the state of an optimizer)" in note and "rng.pth (no weights that can be read" in note


def test_files_that_complement_each_other_are_shards():
    parts = {f"hf_model_{i:04}_0.pt": saved({f"w{i}": torch.full((2, 2), float(i))}) for i in (1, 2)}
    source = open_checkpoint(MemoryTree({**parts, "recipe_state.pt": saved(OPTIMIZER)}))
    assert source.names() == ("w1", "w2") and source.read("w2")[0, 0] == 2


def test_several_epochs_of_one_model_are_not_joined():
    files = {f"hf_model_0001_{epoch}.pt": saved(model()) for epoch in range(2)}
    with pytest.raises(SeveralModelsError, match="checkpoints of several epochs"):
        open_checkpoint(MemoryTree(files))


def test_the_headers_of_many_files_are_not_read():
    with pytest.raises(SeveralModelsError, match=r"17 weight files .* too many") as caught:
        open_checkpoint(MemoryTree({f"{i}.pt": b"" for i in range(17)}))
    assert len(caught.value.files) == 17


def test_a_folder_without_a_model_says_what_each_file_holds():
    files = {"recipe_state.pt": saved(OPTIMIZER), "optimizer.pt": saved(OPTIMIZER["optimizer"])}
    with pytest.raises(UnsupportedFormatError, match=r"optimizer.pt \(the state .* recipe_state.pt \(the state of"):
        open_checkpoint(MemoryTree(files))


RANKS = {
    "FSDP": ("model_world_size_2_rank_{}.pt", r"2 slices for the ranks of sharded training \(FSDP\)"),
    "tensor parallel": ("model-mp-rank-{}.pt", "2 slices for tensor parallelism"),
    "pipeline": ("layer_0{}-model_00-model_states.pt", "2 slices for pipeline parallelism"),
    "unknown": ("rank{}.pt", "2 slices for the ranks of a run"),
}


@pytest.mark.parametrize("kind", RANKS)
@pytest.mark.parametrize("file", [True, False], ids=["named", "folder"])
def test_slices_of_ranks_are_called_what_they_are(kind, file):
    pattern, message = RANKS[kind]
    files = {pattern.format(rank): saved(model()) for rank in range(2)}
    files["optim_world_size_2_rank_0.pt"] = saved(OPTIMIZER)
    with pytest.raises(UnsupportedFormatError, match=message):
        open_checkpoint(MemoryTree(files), file=pattern.format(0) if file else None)


@pytest.mark.parametrize(
    ("pattern", "kind"), [("mp_rank_0{}", "tensor parallelism"), ("mp_rank_00_00{}", "tensor and pipeline parallelism")]
)
def test_the_folders_of_ranks_are_slices(pattern, kind):
    files = {f"iter_9/{pattern.format(rank)}/model_optim_rng.pt": b"" for rank in range(2)}
    with pytest.raises(UnsupportedFormatError, match=f"2 slices for {kind}"):
        open_checkpoint(MemoryTree(files))


def test_the_folders_of_several_runs_are_not_slices_of_one():
    files = {f"{run}/mp_rank_00/model_optim_rng.pt": b"" for run in ("first", "second")}
    with pytest.raises(NoWeightsError, match="name the subfolder"):
        open_checkpoint(MemoryTree(files))


DISTRIBUTED = {
    "DCP": (["__0_0.distcp", ".metadata"], r"distributed checkpoint of PyTorch \(DCP\).*dcp_to_torch"),
    "DCP in a folder": (["pytorch_model_fsdp_0/__0_0.distcp"], r"distributed checkpoint of PyTorch \(DCP\)"),
    "DeepSpeed": (
        ["global_step9/zero_pp_rank_0_mp_rank_00_optim_states.pt", "global_step9/mp_rank_00_model_states.pt", "latest"],
        "DeepSpeed checkpoint.*zero_to_fp32.py",
    ),
}


@pytest.mark.parametrize("kind", DISTRIBUTED)
def test_distributed_checkpoints_are_named_with_the_next_step(kind):
    paths, message = DISTRIBUTED[kind]
    with pytest.raises(UnsupportedFormatError, match=message):
        open_checkpoint(MemoryTree({**dict.fromkeys(paths, b""), "config.json": b"{}"}))


@pytest.mark.parametrize("folder", ["", "lora/"])
def test_an_adapter_beside_a_model_is_mentioned(folder):
    path = f"{folder}adapter_model.safetensors"
    files = {"model.safetensors": safetensors_bytes(model()), path: safetensors_bytes(factors())}
    (note,) = open_checkpoint(MemoryTree({**files, f"{folder}adapter_config.json": b"{}"})).description.notes
    assert note == f"{path}, an adapter, lies beside model.safetensors and was not applied"


def test_another_adapter_of_the_repository_is_mentioned():
    names = ("adapter_model.safetensors", "code/adapter_model.safetensors")
    config = json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": "a/base"}).encode()
    base = open_checkpoint(MemoryTree({"model.safetensors": safetensors_bytes(model())}))
    files = dict.fromkeys(names, safetensors_bytes(factors())) | {"adapter_config.json": config}
    notes = open_checkpoint(MemoryTree(files), open_base=lambda config: base).description.notes
    assert notes[0] == f"{names[1]}, an adapter, lies beside {names[0]} and was not applied"


def test_other_files_are_described_by_their_headers():
    ema = {f"ema.{name}": tensor for name, tensor in model().items()}
    draft = {"d2t": torch.zeros(4), "midlayer.up_proj.weight": torch.zeros(4, 8)}
    tower = {f"visual.blocks.{i}.fc.weight": torch.zeros(4, 8) for i in range(3)}
    empty = {"model.w": torch.zeros(0), "model.v": torch.zeros(0)}
    files = {"a.pt": ema, "b.pt": draft, "c.pt": tower, "d.pt": factors(), "e.pt": empty}
    tree = MemoryTree({"model.pt": saved(model()), **{path: saved(content) for path, content in files.items()}})
    details = {file.path: file.detail for file in files_beside(tree, ["model.pt"])}
    assert details == {
        "a.pt": "averaged weights (EMA)",
        "b.pt": "weights of a draft model",
        "c.pt": "weights of a tower",
        "d.pt": "factors of an adapter (2 modules, rank 2)",
        "e.pt": "empty placeholders, as DeepSpeed's ZeRO stage 3 leaves",
    }


def test_factors_of_torchtune_are_added_to_the_base_that_is_named():
    config = {"base_model_name_or_path": "x", "r": RANK, "lora_alpha": 4}
    names = {"q_proj": "self_attn.q_proj", "v_proj": "self_attn.v_proj"}
    base = {f"model.layers.0.{name}.weight": torch.randn(WIDTH, WIDTH) for name in names.values()}
    a, b = torch.randn(2, RANK, WIDTH), torch.randn(2, WIDTH, RANK)
    adapter = {f"layers.0.attn.{name}.lora_a.weight": a[i] for i, name in enumerate(names)}
    adapter |= {f"layers.0.attn.{name}.lora_b.weight": b[i] for i, name in enumerate(names)}
    tree = MemoryTree({"adapter_0.pt": saved(adapter), "adapter_config.json": json.dumps(config).encode()})
    below = open_checkpoint(MemoryTree({"model.safetensors": safetensors_bytes(base)}))
    source = open_checkpoint(tree, open_base=lambda _: below)
    name = "model.layers.0.self_attn.v_proj.weight"
    torch.testing.assert_close(source.read(name), base[name] + 2 * b[1] @ a[1])
    with pytest.raises(UnsupportedFormatError, match="torchtune's order of rows within a head"):
        source.read("model.layers.0.self_attn.q_proj.weight")
