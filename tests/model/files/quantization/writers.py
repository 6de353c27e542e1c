"""Weights quantised as the libraries write them, with the values that the libraries read back as expected results.

compressed-tensors and bitsandbytes write their own formats here. The other packings follow the publications, without
using any code of the readers; if a library on this machine can read one, its values are the expected result.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest import mock

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.metal_quantization import _affine_dequantize_tensor, _affine_quantize_tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors


def _uncompiled(module: str):
    """A library's module without compiled functions: loading the compiler takes ten seconds, and warns."""
    with mock.patch.object(torch, "compile", lambda function=None, **_: function or (lambda inner: inner)):
        return importlib.import_module(module)


bnb = _uncompiled("bitsandbytes.functional")
bnb_definitions = _uncompiled("bitsandbytes.backends.default.ops")
bitnet_library = _uncompiled("transformers.integrations.bitnet")

E4M3_MAX = 448.0
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@dataclass(frozen=True)
class Written:
    """Stored tensors of one weight and the values that the library reads from them, in float32."""

    tensors: dict[str, torch.Tensor]
    expected: torch.Tensor


@dataclass(frozen=True)
class Scheme:
    """One way to quantise ``module.weight``.

    Attributes:
        write: Makes the tensors from the weight ``(out, in)`` and the module's name.
        config: ``quantization_config``.
        divides: ``out`` and ``in`` must be multiples of these.
        says: The reader's description.
        precision: The dtype in which the library computes; its values are ours, rounded.
        whole: Whether reading some rows reads the whole tensor.
    """

    write: Callable[[torch.Tensor, str], Written]
    config: dict[str, object]
    divides: tuple[int, int]
    says: str
    precision: torch.dtype = torch.float32
    whole: bool = False
    top_level: dict[str, object] = field(default_factory=dict)

    @property
    def model_config(self) -> dict[str, object]:
        """What goes into config.json."""
        return {**({"quantization_config": self.config} if self.config else {}), **self.top_level}


def compressed(fmt: str, says: str, **weights: object) -> Scheme:
    """A format of compressed-tensors."""
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=fmt)
    compressor = BaseCompressor.get_value_from_registry(fmt)

    def write(weight: torch.Tensor, module: str) -> Written:
        scale, zero, whole = scales_of(weight, args)
        state = {"weight": weight.clone(), "weight_scale": scale, "weight_zero_point": zero}
        if whole is not None:
            state["weight_global_scale"] = whole
        stored = compressor.compress(state, scheme)
        read = compressor.decompress(stored, scheme)["weight"]
        return Written({f"{module}.{name}": tensor for name, tensor in stored.items()}, read.float())

    group = weights.get("group_size") or 1
    described = json.loads(args.model_dump_json())
    config = {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "version": "0.20.0",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": described}},
    }
    precision = torch.bfloat16 if "fp4" in fmt or "fp6" in fmt else torch.float32
    return Scheme(write, config, (1, max(group, 2)), says, precision)


def scales_of(weight, args):
    """Scales, zero points and the global scale, by compressed-tensors' own formulas."""
    out, width = weight.shape
    group = {"tensor": None, "channel": width}.get(args.strategy, args.group_size)
    if args.strategy == "block":
        rows, columns = args.block_structure
        padded = torch.nn.functional.pad(weight, (0, -width % columns, 0, -out % rows))
        blocks = padded.reshape(padded.shape[0] // rows, rows, -1, columns)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    elif group is None:
        low, high = weight.amin().reshape(1), weight.amax().reshape(1)
    else:
        low, high = weight.unflatten(1, (-1, group)).amin(-1), weight.unflatten(1, (-1, group)).amax(-1)
    whole = None
    if args.strategy == "tensor_group":
        whole = (E4M3_MAX * 6.0 / weight.abs().max()).reshape(1)
    scale, zero = calculate_qparams(low, high, args, global_scale=whole)
    if args.scale_dtype == torch.uint8:  # powers of two are given in that form
        scale = 2.0 ** torch.floor(torch.log2(torch.maximum(low.abs(), high.abs()) / 4))
    return scale, zero, whole


def fp8_blocks(weight: torch.Tensor, module: str, block: int = 128) -> Written:
    """DeepSeek-V3: one factor for each block, with partial blocks at the edges."""
    out, width = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -width % block, 0, -out % block))
    blocks = padded.reshape(padded.shape[0] // block, block, -1, block).transpose(1, 2)
    scale = blocks.abs().amax((2, 3)).float() / E4M3_MAX
    padded_codes = (blocks / scale[:, :, None, None]).to(torch.float8_e4m3fn)

    def flat(values: torch.Tensor) -> torch.Tensor:
        return values.transpose(1, 2).reshape(padded.shape)[:out, :width].contiguous()

    codes, expected = flat(padded_codes), flat(padded_codes.float() * scale[:, :, None, None])
    if out % block == width % block == 0:
        assert torch.equal(Fp8Dequantize(None)._dequantize_one(codes, scale), expected)
    return Written({f"{module}.weight": codes, f"{module}.weight_scale_inv": scale}, expected)


def fp8_inverse(weight: torch.Tensor, module: str) -> Written:
    """GPTQModel's FP8: by row, with a stored inverse scale that divides."""
    inverse = E4M3_MAX / weight.abs().amax(1).float()
    codes = (weight * inverse[:, None]).to(torch.float8_e4m3fn)
    return Written({f"{module}.weight": codes, f"{module}.weight_scale_inv": inverse}, codes.float() / inverse[:, None])


def fp8_rows(weight: torch.Tensor, module: str) -> Written:
    """FBGEMM: one factor for each row, and an upper bound for activations."""
    scale = weight.abs().amax(1, keepdim=True).float() / E4M3_MAX
    codes = (weight / scale).to(torch.float8_e4m3fn)
    more = {f"{module}.input_scale_ub": torch.tensor([1200.0])}
    return Written({f"{module}.weight": codes, f"{module}.weight_scale": scale, **more}, codes.float() * scale)


def mx_fp8(weight: torch.Tensor, module: str) -> Written:
    """FP8 in groups of 32 with powers of two, as transformers reads MXFP8."""
    exponent = torch.floor(torch.log2(weight.unflatten(1, (-1, 32)).abs().amax(-1))).to(torch.int32) - 8
    codes = (weight / 2.0 ** exponent.repeat_interleave(32, 1)).to(torch.float8_e4m3fn)
    scale = (exponent + 127).to(torch.uint8)
    expected = Fp8Dequantize(None)._dequantize_one(codes, scale, output_dtype=torch.float32)
    return Written({f"{module}.weight": codes, f"{module}.weight_scale_inv": scale}, expected)


def deepseek_fp4(weight: torch.Tensor, module: str) -> Written:
    """DeepSeek-V4's experts: two E2M1 in an int8, E8M0 scales for groups of 32, with DeepSeek's names."""
    codes, exponent = nearest_fp4(weight, 32)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.int8)
    scale = (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
    expected = Fp8Dequantize(None)._dequantize_one(packed, scale, output_dtype=torch.float32)
    return Written({f"{module}.weight": packed, f"{module}.scale": scale}, expected)


def safetensors_fp4(weight: torch.Tensor, module: str) -> Written:
    """The same codes under the dtype F4 of safetensors."""
    written = deepseek_fp4(weight, module)
    codes = written.tensors[f"{module}.weight"].view(torch.float4_e2m1fn_x2)
    return Written(
        {f"{module}.weight": codes, f"{module}.weight_scale": written.tensors[f"{module}.scale"]}, written.expected
    )


def nearest_fp4(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """E2M1 codes, uint8 ``(out, in)``, and exponents of the groups, int32."""
    peak = weight.unflatten(1, (-1, group)).abs().amax(-1).clamp(min=2.0**-100)
    exponent = torch.ceil(torch.log2(peak / 6.0)).to(torch.int32)
    scaled = weight / 2.0 ** exponent.repeat_interleave(group, 1)
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1).to(torch.uint8)
    return codes | (scaled < 0).to(torch.uint8) << 3, exponent


def modelopt_nvfp4(weight: torch.Tensor, module: str) -> Written:
    """ModelOpt's NVFP4: its multiplier is the inverse of compressed-tensors' divisor."""
    like = compressed("nvfp4-pack-quantized", "", **NVFP4).write(weight, module)
    whole = 1 / like.tensors[f"{module}.weight_global_scale"][0]
    packed, scale = like.tensors[f"{module}.weight_packed"], like.tensors[f"{module}.weight_scale"]
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
    values = E2M1[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)
    expected = values * (scale.float() * whole).repeat_interleave(16, 1)
    tensors = {
        f"{module}.weight": packed,
        f"{module}.weight_scale": scale,
        f"{module}.weight_scale_2": whole,
        f"{module}.input_scale": torch.tensor(0.01),
    }
    assert torch.allclose(expected.bfloat16().float(), like.expected, rtol=2**-7, atol=0)
    return Written(tensors, expected)


def modelopt_int4(weight: torch.Tensor, module: str) -> Written:
    """ModelOpt's INT4 AWQ: bytes of two rows, groups of 64, and the input factors that could not be folded."""
    factor = torch.linspace(0.5, 2.0, weight.shape[1])
    scaled = weight / factor
    scale = scaled.unflatten(1, (-1, 64)).abs().amax(-1) / 7.5  # so that -8 is one of the codes
    codes = (scaled / scale.repeat_interleave(64, 1)).round().clamp(-8, 7)
    nibbles = codes.to(torch.int8).view(torch.uint8) & 15
    tensors = {
        f"{module}.weight": nibbles[::2] | nibbles[1::2] << 4,
        f"{module}.weight_scale": scale,
        f"{module}.pre_quant_scale": factor,
    }
    return Written(tensors, codes * (scale.repeat_interleave(64, 1) * factor))


def gptq(bits: int, *, stored_zero: int, sym: bool = True, act_order: bool = False, group: int = 32):
    """GPTQ, packed word by word as in AutoGPTQ; ``stored_zero`` is -1 in its first format and 0 in its second."""

    def write(weight: torch.Tensor, module: str) -> Written:
        out, width = weight.shape
        groups = torch.arange(width) // group
        if act_order:
            groups = groups[torch.randperm(width, generator=torch.Generator().manual_seed(0))]
        n_groups, top = int(groups.max()) + 1, 2**bits - 1
        scales, zeros = torch.empty(n_groups, out), torch.empty(n_groups, out, dtype=torch.int64)
        for g in range(n_groups):
            low = weight[:, groups == g].amin(1).clamp(max=-1e-6)
            high = weight[:, groups == g].amax(1).clamp(min=1e-6)
            if sym:
                scales[g], zeros[g] = 2 * torch.maximum(-low, high) / top, 2 ** (bits - 1)
            else:
                scales[g] = (high - low) / top
                zeros[g] = (-low / scales[g]).round().clamp(1, top)
        codes = (weight.T / scales[groups] + zeros[groups]).round().clamp(0, top).long()  # (in, out)
        expected = ((codes - zeros[groups]) * scales[groups]).T.contiguous()
        tensors = {
            f"{module}.qweight": autogptq_words(codes, bits),
            f"{module}.qzeros": autogptq_words((zeros + stored_zero).T, bits).T.contiguous(),
            f"{module}.scales": scales,
            f"{module}.g_idx": groups.int(),
        }
        return Written(tensors, expected)

    return write


def autogptq_words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack codes ``(n, k)`` into int32 words ``(n * bits / 32, k)``, word by word."""
    n = codes.shape[0]
    words = []
    if bits != 3:
        for at in range(0, n, 32 // bits):
            words.append(sum(codes[at + i] << (bits * i) for i in range(32 // bits)))
    else:
        for at in range(0, n, 32):  # 32 codes in three words; the 11th and the 22nd straddle
            c = [codes[at + i] for i in range(32)]
            words.append(sum(c[i] << (3 * i) for i in range(10)) | (c[10] & 3) << 30)
            words.append(c[10] >> 2 | sum(c[11 + i] << (3 * i + 1) for i in range(10)) | (c[21] & 1) << 31)
            words.append(c[21] >> 1 | sum(c[22 + i] << (3 * i + 2) for i in range(10)))
    return torch.stack(words).to(torch.int32)


def awq(weight: torch.Tensor, module: str, group: int = 32) -> Written:
    """AutoAWQ's gemm layout, read by the converter of compressed-tensors."""
    low, high = (f(weight.unflatten(1, (-1, group)), -1) for f in (torch.amin, torch.amax))
    scales = ((high - low) / 15).T.contiguous()
    zeros = (-low.T / scales).round().clamp(0, 15).long()
    codes = (weight.T / scales.repeat_interleave(group, 0) + zeros.repeat_interleave(group, 0)).round().clamp(0, 15)
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def pack(values: torch.Tensor) -> torch.Tensor:
        words = values.long().unflatten(1, (-1, 8))
        return (
            sum(words[:, :, column] << (4 * place) for place, column in enumerate(order)).to(torch.int32).contiguous()
        )

    converter = AutoAWQConverter(group_size=group, ignore=())
    integers, _, their_zeros = converter._convert_gemm_module(pack(codes), scales, pack(zeros))
    centred = integers.int() - their_zeros.int().repeat_interleave(group, 1)
    expected = centred * scales.T.repeat_interleave(group, 1)
    tensors = {f"{module}.qweight": pack(codes), f"{module}.qzeros": pack(zeros), f"{module}.scales": scales}
    return Written(tensors, expected)


def bitsandbytes_4bit(kind: str, *, nested: bool, storage: torch.dtype = torch.uint8):
    def write(weight: torch.Tensor, module: str) -> Written:
        codes, state = bnb.quantize_4bit(
            weight, quant_type=kind, compress_statistics=nested, blocksize=64, quant_storage=storage
        )
        absmax = state.absmax
        if nested:
            absmax = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
        # Its CPU kernel is wrong if a row is not a multiple of the block; the default backend is the definition.
        plain = inspect.unwrap(bnb_definitions._dequantize_4bit_compute)
        expected = plain(codes.view(torch.uint8).reshape(-1), absmax, state.code, 64, weight.shape, torch.float32)
        tensors = {f"{module}.weight": codes}
        tensors |= {f"{module}.weight.{key}": value for key, value in state.as_dict(packed=True).items()}
        return Written(tensors, expected)

    return write


def bitsandbytes_int8(weight: torch.Tensor, module: str) -> Written:
    codes, maxima, _ = bnb.int8_vectorwise_quant(weight.half())
    expected = bnb.int8_vectorwise_dequant(codes, maxima)
    tensors = {f"{module}.weight": codes, f"{module}.SCB": maxima}
    tensors[f"{module}.weight_format"] = torch.tensor(0, dtype=torch.uint8)
    return Written(tensors, expected)


def mlx(bits: int, group: int = 64):
    """MLX's affine codes, densely packed: code i of a row starts at bit ``bits * i``."""

    def write(weight: torch.Tensor, module: str) -> Written:
        low, high = (f(weight.unflatten(1, (-1, group)), -1) for f in (torch.amin, torch.amax))
        scales = (high - low) / (2**bits - 1)
        codes = ((weight.unflatten(1, (-1, group)) - low[..., None]) / scales[..., None]).round().long().flatten(1)
        expected = (codes.unflatten(1, (-1, group)) * scales[..., None] + low[..., None]).flatten(1)
        rows = [sum(code << (bits * i) for i, code in enumerate(row)) for row in codes.tolist()]
        n_words = weight.shape[1] * bits // 32
        words = [[row >> (32 * i) & 0xFFFFFFFF for i in range(n_words)] for row in rows]
        tensors = {
            f"{module}.weight": torch.tensor(words, dtype=torch.int64).to(torch.uint32),
            f"{module}.scales": scales,
            f"{module}.biases": low,
        }
        return Written(tensors, expected)

    return write


def metal(weight: torch.Tensor, module: str) -> Written:
    """transformers' own affine quantisation for Metal."""
    words, scales, offsets = _affine_quantize_tensor(weight, 64, 4)
    expected = _affine_dequantize_tensor(words, scales, offsets, 64, 4)
    return Written({f"{module}.weight": words, f"{module}.scales": scales, f"{module}.qbiases": offsets}, expected)


def bitnet(weight: torch.Tensor, module: str) -> Written:
    """transformers' BitNet: three values, four to a byte; a byte's rows are a quarter of the matrix apart."""
    scale = 1 / weight.abs().mean()
    ternary = (weight * scale).round().clamp(-1, 1)
    packed = bitnet_library.pack_weights(ternary.clone())
    expected = bitnet_library.unpack_weights(packed, torch.float32) / scale
    return Written({f"{module}.weight": packed, f"{module}.weight_scale": scale.reshape(1)}, expected)


def gpt_oss_experts(experts: torch.Tensor, name: str) -> Written:
    """Experts ``(n, out, in)`` in the blocks of gpt-oss; transformers reads them as ``(n, in, out)``."""
    n, out, width = experts.shape
    codes, exponent = nearest_fp4(experts.reshape(n * out, width), 32)
    blocks = (codes[:, ::2] | codes[:, 1::2] << 4).reshape(n, out, width // 32, 16)
    scales = (exponent + 127).to(torch.uint8).reshape(n, out, width // 32)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return Written({f"{name}_blocks": blocks, f"{name}_scales": scales}, expected)


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
NVFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
MX = {"type": "float", "symmetric": True, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
PACKED = "pack-quantized"

SCHEMES: dict[str, Scheme] = {
    "fp8-block": Scheme(
        fp8_blocks, {"quant_method": "fp8", "weight_block_size": [128, 128]}, (1, 1), "FP8, blocks of 128 x 128"
    ),
    "fp8-gptqmodel": Scheme(
        fp8_inverse, {"quant_method": "fp8", "weight_scale_semantics": "inverse"}, (1, 1), "FP8, one scale per row"
    ),
    "fp8-fbgemm": Scheme(fp8_rows, {"quant_method": "fbgemm_fp8"}, (1, 1), "FP8, one scale per row"),
    "fp8-mx": Scheme(mx_fp8, {"quant_method": "mxfp8"}, (1, 32), "MXFP8, in groups of 32"),
    "fp8-tensor": compressed(
        "float-quantized", "FP8, one scale per tensor", num_bits=8, type="float", strategy="tensor"
    ),
    "fp8-channel": compressed(
        "float-quantized", "FP8, one scale per row", num_bits=8, type="float", strategy="channel"
    ),
    "fp8-compressed-block": compressed(
        "float-quantized",
        "FP8, blocks of 32 x 64",
        num_bits=8,
        type="float",
        strategy="block",
        block_structure=[32, 64],
    ),
    "int8-channel": compressed("int-quantized", "INT8, one scale per row", num_bits=8, type="int", strategy="channel"),
    "int8-asymmetric": compressed(
        "int-quantized", "INT8, one scale per row", num_bits=8, type="int", strategy="channel", symmetric=False
    ),
    "int4": compressed(PACKED, "INT4, in groups of 32", **INT4),
    "int4-asymmetric": compressed(PACKED, "INT4, in groups of 32", **(INT4 | {"symmetric": False})),
    "int4-channel": compressed(PACKED, "INT4, one scale per row", num_bits=4, type="int", strategy="channel"),
    "int8-packed": compressed(PACKED, "INT8, in groups of 32", **(INT4 | {"num_bits": 8})),
    "int3": compressed(PACKED, "INT3, in groups of 32", **(INT4 | {"num_bits": 3})),
    "int5-asymmetric": compressed(PACKED, "INT5, in groups of 32", **(INT4 | {"num_bits": 5, "symmetric": False})),
    "nvfp4": compressed("nvfp4-pack-quantized", "NVFP4, in groups of 16", **NVFP4),
    "mxfp4": compressed("mxfp4-pack-quantized", "MXFP4, in groups of 32", num_bits=4, **MX),
    "mxfp6": compressed("mxfp6-pack-quantized", "MXFP6, in groups of 32", num_bits=6, **MX),
    "mxfp8": compressed("mxfp8-quantized", "MXFP8, in groups of 32", num_bits=8, **MX),
    "nvfp4-modelopt": Scheme(
        modelopt_nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, (1, 16), "NVFP4, in groups of 16"
    ),
    "int4-modelopt": Scheme(
        modelopt_int4, {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, (2, 64), "INT4, in groups of 64"
    ),
    "fp4-deepseek": Scheme(deepseek_fp4, {"quant_method": "fp8"}, (1, 32), "MXFP4, in groups of 32"),
    "fp4-safetensors": Scheme(safetensors_fp4, {}, (1, 32), "MXFP4, in groups of 32"),
    **{
        f"gptq-{bits}": Scheme(
            gptq(bits, stored_zero=-1),
            {"quant_method": "gptq", "bits": bits, "group_size": 32, "checkpoint_format": "gptq"},
            (32, 32),
            f"GPTQ, {bits} bits in groups of 32",
            whole=True,
        )
        for bits in (2, 3, 4, 8)
    },
    "gptq-asymmetric": Scheme(
        gptq(4, stored_zero=-1, sym=False, act_order=True),
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True},
        (32, 32),
        "GPTQ, 4 bits in groups of 32",
        whole=True,
    ),
    "gptq-v2": Scheme(
        gptq(4, stored_zero=0, sym=False),
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "checkpoint_format": "gptq_v2"},
        (32, 32),
        "GPTQ, 4 bits in groups of 32",
        whole=True,
    ),
    "awq": Scheme(
        awq,
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
        (8, 32),
        "AWQ, 4 bits in groups of 32",
        whole=True,
    ),
    "nf4": Scheme(
        bitsandbytes_4bit("nf4", nested=False),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        (1, 1),
        "bitsandbytes NF4, blocks of 64",
    ),
    "nf4-nested": Scheme(
        bitsandbytes_4bit("nf4", nested=True),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        (1, 1),
        "bitsandbytes NF4, blocks of 64",
    ),
    "nf4-in-bfloat16": Scheme(
        bitsandbytes_4bit("nf4", nested=True, storage=torch.bfloat16),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        (1, 4),
        "bitsandbytes NF4, blocks of 64",
    ),
    "fp4-bitsandbytes": Scheme(
        bitsandbytes_4bit("fp4", nested=False),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        (1, 1),
        "bitsandbytes FP4, blocks of 64",
    ),
    "int8-bitsandbytes": Scheme(
        bitsandbytes_int8,
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        (1, 1),
        "bitsandbytes INT8, one scale per row",
    ),
    **{
        f"mlx-{bits}": Scheme(
            mlx(bits),
            {},
            (1, 64),
            f"MLX, {bits} bits in groups of 64",
            top_level={"quantization": {"bits": bits, "group_size": 64}},
        )
        for bits in (2, 3, 4, 6, 8)
    },
    "metal": Scheme(
        metal,
        {"quant_method": "metal", "bits": 4, "group_size": 64},
        (1, 64),
        "MLX, 4 bits in groups of 64",
    ),
    "bitnet": Scheme(bitnet, {"quant_method": "bitnet"}, (4, 1), "BitNet, three values"),
}
"""Every supported scheme except stacks of experts."""
