"""Whole models in published quantisation formats, compared with how transformers loads the same files."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf import HomologyChecker, Verdict
from mdir_hf.model.files import open_checkpoint
from mdir_hf.model.hub import open_repository
from mdir_hf.report import Outcome
from tests.model.files.quantization.writers import fp8_blocks, gpt_oss_experts
from tests.specimens import tokenizer_json, tokens

transformers = pytest.importorskip("transformers")

V, LAYERS = 400, 2


@pytest.fixture(autouse=True)
def no_progress_bars():
    transformers.utils.logging.disable_progress_bar()


def deepseek(folder, seed):
    """A tiny DeepSeek-V3 with latent attention, a dense layer, and routed and shared experts."""
    config = transformers.DeepseekV3Config(
        vocab_size=V, hidden_size=192, intermediate_size=320, moe_intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=2,
        first_k_dense_replace=1, q_lora_rank=96, kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32,
        v_head_dim=32, n_group=2, topk_group=1, max_position_embeddings=128, initializer_range=0.05,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.DeepseekV3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(V))))
    return folder


def in_fp8(source, folder, *, block, **settings):
    """The FP8 format that DeepSeek publishes: a factor for each block of a projection, partial blocks at the edges."""
    shutil.copytree(source, folder)
    stored, expected = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "_proj" in name and tensor.ndim == 2:
            written = fp8_blocks(tensor.float(), name.removesuffix(".weight"), block)
            stored |= written.tensors
            expected[name] = written.expected
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [block, block], **settings}
    (folder / "config.json").write_text(json.dumps(config))
    return expected


def compare(reference, candidate, **options):
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False, **options)


def test_deepseek_in_fp8_is_read_as_by_transformers(tmp_path):
    original = deepseek(tmp_path / "original", 0)
    expected = in_fp8(original, tmp_path / "fp8", block=16, dequantize=True)
    loaded = transformers.DeepseekV3ForCausalLM.from_pretrained(tmp_path / "fp8", dtype=torch.float32).state_dict()
    source = open_checkpoint(open_repository(tmp_path / "fp8"))
    assert source.names() == tuple(sorted(load_file(original / "model.safetensors")))
    compared = 0
    for name in source.names():
        if name in loaded:
            assert torch.equal(source.read(name), loaded[name].float()), name
            compared += 1
        if name in expected:
            assert torch.equal(source.read(name), expected[name])
    assert compared > 20
    experts = loaded["model.layers.1.mlp.experts.gate_up_proj"]  # transformers stacks them, gate before up
    for number in range(8):
        parts = [source.read(f"model.layers.1.mlp.experts.{number}.{part}_proj.weight") for part in ("gate", "up")]
        assert torch.equal(torch.cat(parts), experts[number])


def gpt_oss(folder, seed):
    config = transformers.GptOssConfig(
        vocab_size=V, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=128,
        pad_token_id=None, initializer_range=0.05,
    )  # fmt: skip
    torch.manual_seed(seed)
    transformers.GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(V))))
    return folder


def in_mxfp4(source, folder):
    """The MXFP4 format that OpenAI publishes: experts in blocks, ``(experts, out, in)``."""
    shutil.copytree(source, folder)
    stored = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        is_expert = name.endswith(("experts.gate_up_proj", "experts.down_proj"))
        stored |= gpt_oss_experts(tensor.float().transpose(1, 2), name).tensors if is_expert else {name: tensor}
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"], "dequantize": True}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_gpt_oss_in_mxfp4_is_read_as_by_transformers(tmp_path):
    original = gpt_oss(tmp_path / "original", 0)
    quantized = in_mxfp4(original, tmp_path / "mxfp4")
    loaded = transformers.GptOssForCausalLM.from_pretrained(quantized, dtype=torch.bfloat16).state_dict()
    source = open_checkpoint(open_repository(quantized))
    plain = open_checkpoint(open_repository(original))
    assert source.names() == plain.names()
    for name in source.names():
        assert source.spec(name).shape == plain.spec(name).shape
        assert torch.equal(source.read(name).bfloat16(), loaded[name].bfloat16()), name
    report = compare(original, quantized, level="layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.candidate.quantization == "MXFP4, in groups of 32"
    experts = [result for result in report.projections.results if result.experts]
    assert {(result.layer.candidate, result.role.value) for result in experts} == {
        (layer, role) for layer in range(2) for role in ("gate", "up", "down")
    }
    for result in experts:
        partners = {one.candidate: one.reference for one in result.experts}
        assert result.outcome is Outcome.KEPT and partners == {number: number for number in range(4)}
