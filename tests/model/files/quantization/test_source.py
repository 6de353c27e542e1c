"""The reader's cost and descriptions: no cost without quantisation, and the config is read only if needed."""

import io
import json

import numpy as np
import pytest
import torch

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files import MemorySource, open_checkpoint
from tests.conformance_tensors import (
    MemoryTree,
    TensorSourceConformance,
    random_tensors,
    safetensors_bytes,
)
from tests.model.files.quantization.stored import FILE, MODULE, WEIGHT, source_of, tree_of, weight_for
from tests.model.files.quantization.writers import SCHEMES


class CountingTree(MemoryTree):
    """Records which small files were read."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.small = []

    def read(self, path, *, max_bytes=64 << 20):
        self.small.append(path)
        return super().read(path, max_bytes=max_bytes)


def written(name):
    scheme = SCHEMES[name]
    return scheme.write(weight_for(scheme), MODULE), scheme.model_config


class TestPlainTensors(TensorSourceConformance):
    """Nothing is quantised: everything passes through."""

    def make(self, tensors, tmp_path):
        return source_of(tensors)


class TestQuantizedTensors(TensorSourceConformance):
    """Tensors that FP8 with one scale per tensor can represent exactly are stored that way."""

    @pytest.fixture
    def tensors(self):
        tensors = random_tensors()
        for name in ("embed.weight", "half", "single", "one", "cube"):
            tensors[name] = tensors[name].to(torch.float8_e4m3fn).to(tensors[name].dtype)
        return tensors

    def make(self, tensors, tmp_path):
        stored = dict(tensors)
        for name, tensor in tensors.items():
            if tensor.ndim < 2 or tensor.dtype in (torch.int32, torch.float64) or not tensor.numel():
                continue
            is_finite = tensor.float().isfinite()
            finite = tensor.float()[is_finite]
            scale = finite.abs().max() if len(finite.unique()) == 1 else torch.tensor(0.5)
            dtype = tensor.dtype if "fp8" in name else torch.float8_e4m3fn
            codes = torch.where(is_finite, tensor.float() / scale, float("nan")).to(dtype)
            assert torch.equal((codes.float() * scale)[is_finite], finite)
            stored |= {name: codes, f"{name}_scale": scale.clone()}
        return source_of(stored)

    def test_a_checkpoint_names_its_format(self, source):
        assert source.description.format == "safetensors"
        assert source.description.quantization == "FP8, one scale per tensor"

    def test_a_spec_has_the_stored_shape_and_size(self, source, tensors):
        for name in ("embed.weight", "half", "single", "cube"):
            assert source.spec(name).shape == tuple(tensors[name].shape)
            assert source.spec(name).n_bytes == tensors[name].numel()

    def test_a_spec_names_the_stored_dtype(self, source):
        dtypes = {name: source.spec(name).dtype for name in ("embed.weight", "norm", "double")}
        assert dtypes == {"embed.weight": "F8_E4M3", "norm": "F32", "double": "F64"}

    def test_size_counts_at_least_every_tensor(self, source):
        assert source.n_bytes == len(source._tree.contents[FILE])

    def test_a_stored_tensor_is_read_as_it_is(self, source, tensors):
        for name in ("norm", "double", "integers", "mask"):
            assert torch.equal(source.read_stored(name), tensors[name]), name

    def test_stored_rows_are_read_as_they_are(self, source, tensors):
        for name in ("double", "integers"):
            assert torch.equal(source.read_stored_rows(name, np.array([2, 0])), tensors[name][[2, 0]]), name


def sharded(quantized):
    """Codes in one shard and companions in the other, with an index."""
    paths = {name: f"model-0000{2 if name == WEIGHT else 1}-of-00002.safetensors" for name in quantized}
    return CountingTree(
        {
            **{
                path: safetensors_bytes({name: t for name, t in quantized.items() if paths[name] == path})
                for path in set(paths.values())
            },
            "model.safetensors.index.json": json.dumps({"weight_map": paths}).encode(),
        }
    )


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("config.json", {"quantization_config": {"weight_block_size": [64, 32]}}),
        ("config.json", {"text_config": {"quantization_config": {"weight_block_size": [64, 32]}}}),
        ("config.json", {"compression_config": {"weight_block_size": [64, 32]}}),
        ("quantize_config.json", {"weight_block_size": [64, 32]}),
        ("quant_config.json", {"weight_block_size": [64, 32]}),
        ("hf_quant_config.json", {"producer": {}, "quantization": {"weight_block_size": [64, 32]}}),
        (
            "config.json",
            {"quantization_config": {"config_groups": {"g": {"weights": {"block_structure": "64x32"}}}}},
        ),
    ],
)
def test_the_block_size_is_read_from_every_librarys_field(path, settings):
    scale = torch.tensor([[1.0, 2.0], [4.0, 8.0]])  # 96 rows and 60 columns: 64 + 32 and 32 + 28
    codes = torch.ones(96, 60).to(torch.float8_e4m3fn)
    tree = tree_of({WEIGHT: codes, f"{WEIGHT}_scale_inv": scale}, {"model_type": "x"})
    tree.contents[path] = json.dumps(settings).encode()
    tree.files = MemoryTree(tree.contents).files
    got = source_of({}, tree=tree).read(WEIGHT)
    assert torch.equal(got, scale.repeat_interleave(64, 0)[:96].repeat_interleave(32, 1)[:, :60])


def test_schemes_with_the_same_tensor_names_are_distinguished():
    # DeepSeek-V4: FP8 and FP4 both consist of a weight and a scale; a description may read only one header.
    fp8, fp4 = SCHEMES["fp8-block"], SCHEMES["fp4-deepseek"]
    attention = fp8.write(weight_for(fp8), "model.layers.0.attn.wo").tensors
    tensors = {name.replace(".weight_scale_inv", ".scale"): tensor for name, tensor in attention.items()}
    expert = "model.layers.0.ffn.experts.0.w1"
    source = source_of(tensors | fp4.write(weight_for(fp4), expert).tensors, fp8.model_config)
    assert source.description.quantization == "FP8, blocks of 128 x 128"
    source.read(f"{expert}.weight")
    assert source.description.quantization == "FP8, blocks of 128 x 128; MXFP4, in groups of 32"


def test_other_schemes_in_one_checkpoint_are_read_side_by_side():
    tensors, expected = {}, {}
    for number, name in enumerate(("gptq-4", "nf4", "nvfp4")):
        scheme = SCHEMES[name]
        part = scheme.write(weight_for(scheme), f"m.{number}")
        tensors |= part.tensors
        expected[f"m.{number}.weight"] = part.expected.to(scheme.precision)
    source = source_of(tensors)
    for name, values in expected.items():
        assert torch.equal(source.read(name).to(values.dtype), values)


CONFIG_NOTES = {
    "QuaRot": ({"transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, "rotated: "),
    "SpinQuant in Quark": ({"algo_config": [{"name": "rotation"}]}, "rotated: "),
    "SmoothQuant of ModelOpt": ({"quant_algo": "W8A8_SQ_PER_CHANNEL"}, "SmoothQuant: per-channel rescaled: "),
    "SmoothQuant in Quark": ({"algo_config": {"name": "smooth"}}, "SmoothQuant: per-channel rescaled: "),
    "AWQ of ModelOpt": ({"quant_algo": "NVFP4_AWQ"}, "AWQ: per-channel rescaled: "),
    "AWQ in Quark": ({"algo_config": [{"name": "awq"}]}, "AWQ: per-channel rescaled: "),
}


@pytest.mark.parametrize("case", CONFIG_NOTES)
def test_changes_before_quantising_are_noted(case):
    settings, note = CONFIG_NOTES[case]
    tensors = written("int8-channel")[0].tensors
    notes = source_of(tensors, {"quantization_config": settings}).description.notes
    assert [text.startswith(note) for text in notes] == [True]


def test_plain_fp8_is_read_and_noted():
    codes = torch.tensor([[1.0, -2.0], [0.5, 448.0]]).to(torch.float8_e4m3fn)
    source = source_of({WEIGHT: codes, f"{MODULE}.bias": torch.ones(2)})
    assert source.description.notes == ()
    assert torch.equal(source.read(WEIGHT), codes.float())
    assert source.description.notes == ("some weights are stored as FP8 without any scale, and are read as they are",)


def test_plain_fp8_beside_something_like_a_scale_is_refused():
    codes = torch.ones(2, 2).to(torch.float8_e4m3fn)
    for beside in (f"{MODULE}.amax_scales", f"{WEIGHT}_max"):
        with pytest.raises(UnsupportedFormatError, match=rf"{beside} may scale them"):
            source_of({WEIGHT: codes, beside: torch.ones(2)}).read(WEIGHT)


def test_fp8_without_its_scale_among_others_is_incomplete():
    tensors = written("fp8-block")[0].tensors
    other = "model.layers.0.mlp.down_proj.weight"
    source = source_of(tensors | {other: tensors[WEIGHT].clone()})
    for read in (source.read, lambda name: source.read_rows(name, np.array([0]))):
        with pytest.raises(CorruptCheckpointError, match=rf"'{other}' holds .*'{other}_scale_inv.* unlike"):
            read(other)


def test_plain_fp4_is_read_low_half_first():
    values = torch.tensor([[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], [-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]])
    packed = torch.tensor([[0x10, 0x32, 0x54, 0x76], [0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8)
    source = source_of({WEIGHT: packed.view(torch.float4_e2m1fn_x2)})
    assert source.spec(WEIGHT).shape == (2, 8)
    assert torch.equal(source.read(WEIGHT), values)
    assert torch.equal(source.read_rows(WEIGHT, np.array([1])), values[1:])


def f4_file(shape):
    n_bytes = int(np.prod(shape)) // 2
    header = json.dumps({WEIGHT: {"dtype": "F4", "shape": shape, "data_offsets": [0, n_bytes]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(n_bytes)


def test_rows_of_fp4_that_end_within_a_byte_are_refused():
    source = source_of({}, tree=MemoryTree({FILE: f4_file([2, 3])}))
    with pytest.raises(UnsupportedFormatError, match="rows of 3 4-bit numbers, which end within a byte"):
        source.read(WEIGHT)


@pytest.mark.parametrize("name", ["int4", "gptq-4", "nf4"])
def test_several_threads_may_read(name):
    from concurrent.futures import ThreadPoolExecutor

    quantized, config = written(name)
    source = source_of(quantized.tensors, config)
    rows = [np.array([number % 70]) for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda r: source.read_rows(WEIGHT, r), rows))
    for r, values in zip(rows, got, strict=True):
        assert torch.equal(values, quantized.expected[r])


def test_codes_in_pytorch_files_are_read_as_well():
    # AutoGPTQ wrote .bin files before it wrote safetensors.
    quantized, config = written("gptq-4")
    content = io.BytesIO()
    torch.save(quantized.tensors, content)
    tree = MemoryTree({"pytorch_model.bin": content.getvalue(), "quantize_config.json": json.dumps(config).encode()})
    source = open_checkpoint(tree)
    assert torch.equal(source.read(WEIGHT), quantized.expected)
    assert source.description.format == "PyTorch"
    assert source.description.quantization == "GPTQ, 4 bits in groups of 32"


def test_reading_rows_keeps_the_last_only():
    tensors = {}
    for number in range(2):
        scheme = SCHEMES["gptq-4"]
        tensors |= scheme.write(weight_for(scheme, seed=number), f"m.{number}").tensors
    source = source_of(tensors)
    source.read("m.0.weight")
    assert source._cache is None
    source.read_rows("m.0.weight", np.array([0]))
    source.read_rows("m.1.weight", np.array([0]))
    assert source._cache[0] == "m.1.weight"


def test_small_companions_are_read_once_and_not_kept_for_ever():
    from mdir_hf.model.files.quantization import KEPT_COMPANIONS, _Companions

    class Counting(MemorySource):
        """A source in memory that counts the reads of stored tensors."""

        n_reads = 0

        def read_stored(self, name):
            self.n_reads += 1
            return super().read_stored(name)

    stored = Counting({f"{number:03}": torch.ones(1) for number in range(KEPT_COMPANIONS + 1)})
    companions = _Companions(stored)
    for name in stored.names():
        companions.read_stored(name), companions.read_stored(name)
    assert stored.n_reads == KEPT_COMPANIONS + 1
    companions.read_stored("000")  # 000 was evicted when the last one was read
    assert stored.n_reads == KEPT_COMPANIONS + 2
