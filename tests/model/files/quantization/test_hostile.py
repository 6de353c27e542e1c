"""Parts that are missing, do not fit, contradict the sizes or contain no numbers raise errors with both names."""

import json
import re

import numpy as np
import pytest
import torch

from mdir_hf.errors import CheckpointError, CorruptCheckpointError, TensorNotFoundError, UnsupportedFormatError
from mdir_hf.model.files.quantization.opening import MOST_GROUP
from tests.conformance_tensors import MemoryTree, safetensors_bytes
from tests.model.files.quantization.stored import MODULE, WEIGHT, source_of, weight_for
from tests.model.files.quantization.writers import SCHEMES

CODES = {"packed": f"{WEIGHT}_packed", "q": f"{MODULE}.qweight"}
# Parts that may be missing: they only supplement the shapes, or have a default.
SPARE = ("shape", "g_idx", "qzeros", "input_scale", "input_scale_ub", "pre_quant_scale", "weight_format", "zero_point")


def written(name):
    scheme = SCHEMES[name]
    return dict(scheme.write(weight_for(scheme), MODULE).tensors), scheme.model_config


def codes_of(tensors):
    return next((name for name in CODES.values() if name in tensors), WEIGHT)


def needed_parts():
    for scheme in SCHEMES:
        tensors, _ = written(scheme)
        for name in tensors:
            if name != codes_of(tensors) and not name.endswith(SPARE):
                yield scheme, name


@pytest.mark.parametrize(("scheme", "part"), list(needed_parts()))
def test_a_part_that_is_missing_is_named_with_the_codes(scheme, part):
    tensors, config = written(scheme)
    del tensors[part]
    other, _ = written("fp8-block")  # otherwise the FP8 codes without a scale would be plain FP8
    beside = {name.replace("up_proj", "down_proj"): tensor for name, tensor in other.items()}
    source = source_of(tensors | beside, config)
    codes = codes_of(tensors)
    if (
        codes == WEIGHT
        and tensors[codes].dtype in (torch.int8, torch.uint8)
        and part.endswith((".weight_scale", ".scale", "SCB"))
    ):
        # Integers without other parts fit no scheme, so the missing part cannot be named.
        with pytest.raises(UnsupportedFormatError, match=rf"'{codes}' holds .* cannot be decoded to weights without"):
            source.read(WEIGHT)
        return
    like = re.escape(part.replace("qbiases", "biases").removesuffix("fp4").removesuffix("nf4"))
    with pytest.raises(
        CorruptCheckpointError, match=rf"'{codes}' holds .*'{like}\w*'.* (is|are) not in the checkpoint"
    ):
        source.read(WEIGHT)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_missing_codes_are_named_with_the_remaining_parts(scheme):
    tensors, config = written(scheme)
    codes = codes_of(tensors)
    del tensors[codes]
    with pytest.raises(CheckpointError, match=r"not in the checkpoint|no tensor"):
        source_of(tensors, config).spec(WEIGHT)


def test_an_orphan_says_which_weight_is_missing():
    source = source_of({f"{WEIGHT}_scale_inv": torch.ones(1, 1)})
    with pytest.raises(
        CorruptCheckpointError, match=rf"'{WEIGHT}_scale_inv' belongs to .* '{WEIGHT}', which are not in"
    ):
        source.read(WEIGHT)
    with pytest.raises(TensorNotFoundError):
        source.read("model.norm.weight")


@pytest.mark.parametrize(
    ("scheme", "part"),
    [
        ("fp8-block", f"{WEIGHT}_scale_inv"),
        ("fp8-channel", f"{WEIGHT}_scale"),
        ("int8-channel", f"{WEIGHT}_scale"),
        ("int8-asymmetric", f"{WEIGHT}_zero_point"),
        ("int4", f"{WEIGHT}_scale"),
        ("int4-asymmetric", f"{WEIGHT}_zero_point"),
        ("nvfp4", f"{WEIGHT}_scale"),
        ("nvfp4", f"{WEIGHT}_global_scale"),
        ("mxfp4", f"{WEIGHT}_scale"),
        ("nvfp4-modelopt", f"{WEIGHT}_scale_2"),
        ("int4-modelopt", f"{MODULE}.pre_quant_scale"),
        ("gptq-4", f"{MODULE}.scales"),
        ("gptq-4", f"{MODULE}.qzeros"),
        ("gptq-4", f"{MODULE}.g_idx"),
        ("awq", f"{MODULE}.scales"),
        ("awq", f"{MODULE}.qzeros"),
        ("nf4", f"{WEIGHT}.absmax"),
        ("nf4", f"{WEIGHT}.quant_map"),
        ("nf4-nested", f"{WEIGHT}.nested_absmax"),
        ("nf4-nested", f"{WEIGHT}.nested_quant_map"),
        ("int8-bitsandbytes", f"{MODULE}.SCB"),
        ("mlx-4", f"{MODULE}.scales"),
        ("mlx-4", f"{MODULE}.biases"),
        ("bitnet", f"{WEIGHT}_scale"),
    ],
)
@pytest.mark.parametrize("change", ["longer", "empty"])
def test_a_part_that_does_not_fit_is_named_with_the_codes(scheme, part, change):
    tensors, config = written(scheme)
    old = tensors[part]
    whole = old.reshape(max(1, old.shape[0] if old.ndim else 1), -1)
    # 7 additional rows or entries divide evenly into nothing here, and are not blocks of 128.
    grown = torch.cat([whole.view(torch.uint8)] * 2).view(old.dtype)[: len(whole) + min(7, len(whole))]
    tensors[part] = grown.reshape(-1) if old.ndim < 2 else grown
    if change == "empty":
        tensors[part] = old.reshape(-1)[:0].reshape((0, *old.shape[1:]) if old.ndim else (0,))
    with pytest.raises((CorruptCheckpointError, UnsupportedFormatError)) as caught:
        source_of(tensors, config).read(WEIGHT)
    assert codes_of(tensors) in str(caught.value)
    assert part in str(caught.value) or isinstance(caught.value, UnsupportedFormatError)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("scheme", "part"),
    [
        ("fp8-channel", f"{WEIGHT}_scale"),
        ("int8-channel", f"{WEIGHT}_scale"),
        ("int4", f"{WEIGHT}_scale"),
        ("gptq-4", f"{MODULE}.scales"),
        ("int8-bitsandbytes", f"{MODULE}.SCB"),
        ("mlx-4", f"{MODULE}.biases"),
    ],
)
def test_scales_that_are_nan_are_reported_with_the_row(scheme, part, value):
    tensors, config = written(scheme)
    # GPTQ stores scales as (groups, out), so the column is the row.
    place = (0, 5) if scheme == "gptq-4" else (5,) + (0,) * (tensors[part].ndim - 1)
    tensors[part][place] = value
    source = source_of(tensors, config)
    message = rf"'{WEIGHT}' .*{part}.*NaN or infinity, first seen in row 5"
    with pytest.raises(CorruptCheckpointError, match=message):
        source.read(WEIGHT)
    with pytest.raises(CorruptCheckpointError, match=message):
        source.read_rows(WEIGHT, np.array([7, 5, 0]))
    assert source.read_rows(WEIGHT, np.array([7, 6])).isfinite().all()


def test_an_exponent_of_all_ones_is_not_a_number():
    tensors, config = written("mxfp4")
    tensors[f"{WEIGHT}_scale"][3] = 255
    with pytest.raises(CorruptCheckpointError, match="first seen in row 3"):
        source_of(tensors, config).read(WEIGHT)


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40], [71, 1 << 62], [71, -160], [71, 0], [70, 160], [160], [71, 161]])
def test_a_weight_shape_that_contradicts_the_codes_is_refused(shape):
    tensors, config = written("int4-channel")
    tensors[f"{WEIGHT}_shape"] = torch.tensor(shape)
    with pytest.raises(CorruptCheckpointError, match=r"weight_(shape|packed)"):
        source_of(tensors, config).read(WEIGHT)


STATES = {
    "no JSON": b"\xff\xfe",
    "deep JSON": b"[" * 100_000,
    "a list": b"[]",
    "no shape": {"shape": None},
    "a huge shape": {"shape": [1 << 30, 1 << 30]},
    "a shape beyond sizes": {"shape": [1 << 40, 1]},
    "a negative shape": {"shape": [-71, -147]},
    "three axes": {"shape": [71, 147, 1]},
    "no block": {"blocksize": None},
    "an empty block": {"blocksize": 0},
    "a huge block": {"blocksize": MOST_GROUP * 2},
    "a truth value": {"blocksize": True},
    "no offset": {"nested_offset": "x"},
    "an empty outer block": {"nested_blocksize": 0},
}


@pytest.mark.parametrize("case", STATES)
def test_an_inconsistent_state_of_bitsandbytes_is_refused(case):
    tensors, config = written("nf4-nested")
    name = next(name for name in tensors if "quant_state" in name)
    change = STATES[case]
    if isinstance(change, dict):
        change = json.dumps(json.loads(bytes(tensors[name].tolist())) | change).encode()
    tensors[name] = torch.frombuffer(bytearray(change), dtype=torch.uint8)
    with pytest.raises(CorruptCheckpointError, match=WEIGHT):
        source_of(tensors, config).read(WEIGHT)


def test_a_huge_state_is_not_read():
    tensors, config = written("nf4")
    name = next(name for name in tensors if "quant_state" in name)
    tensors[name] = torch.zeros(2 << 20, dtype=torch.uint8)
    with pytest.raises(CorruptCheckpointError, match="2,097,152 bytes"):
        source_of(tensors, config).read(WEIGHT)


@pytest.mark.parametrize("group", [-2, 5, 1 << 30])
@pytest.mark.parametrize("scheme", ["gptq-4", "int4"])
def test_groups_outside_of_the_scales_are_refused(scheme, group):
    tensors, config = written(scheme)
    name = f"{MODULE}.g_idx" if scheme == "gptq-4" else f"{WEIGHT}_g_idx"
    tensors[name] = torch.zeros(160, dtype=torch.int32)
    tensors[name][100] = group
    with pytest.raises(CorruptCheckpointError, match=r"g_idx' of .* names groups from .*; there are 5"):
        source_of(tensors, config).read(WEIGHT)


@pytest.mark.parametrize(
    "config",
    [
        b"not json",
        b"[" * 100_000,
        b"[]",
        b'{"quantization_config": 3}',
        b'{"quantization_config": {"config_groups": {"a": 1, "b": {"weights": []}}, "bits": "x", "sym": 3}}',
        b'{"model_type": 3, "text_config": []}',
    ],
)
def test_an_invalid_config_costs_only_its_hints(config):
    tensors, _ = written("int4")
    files = {"model.safetensors": safetensors_bytes(tensors), "config.json": config}
    got = source_of({}, tree=MemoryTree(files)).read(WEIGHT)
    assert torch.equal(got, SCHEMES["int4"].write(weight_for(SCHEMES["int4"]), MODULE).expected)


def test_codes_beside_a_weight_of_the_same_name_are_refused():
    tensors, config = written("gptq-4")
    with pytest.raises(CorruptCheckpointError, match="unclear which of them is valid"):
        source_of(tensors | {WEIGHT: torch.ones(2, 2)}, config).read(WEIGHT)


@pytest.mark.parametrize("scheme", ["fp8-block", "int4", "nvfp4-modelopt", "nf4"])
def test_an_unknown_companion_is_refused_and_not_ignored(scheme):
    tensors, config = written(scheme)
    with pytest.raises(UnsupportedFormatError, match=rf"{WEIGHT}_outlier_scale belong to no known scheme"):
        source_of(tensors | {f"{WEIGHT}_outlier_scale": torch.ones(1)}, config).read(WEIGHT)


@pytest.mark.parametrize("shape", [(0, 128), (128, 0), (5,), ()])
def test_codes_without_rows_or_columns_end_in_our_errors(shape):
    tensors = {WEIGHT: torch.zeros(shape, dtype=torch.float8_e4m3fn), f"{WEIGHT}_scale": torch.ones(1, 1)}
    source = source_of(tensors)
    try:
        assert source.read(WEIGHT).shape == shape
    except CheckpointError:
        return
    assert source.read_rows(WEIGHT, np.empty(0, dtype=np.int64)).shape == (0, shape[-1])
