"""Disguised copies: reordered, split, rotated and pruned, behind new embeddings, false tokens and decoy layers."""

import copy

import pytest
import torch

from mdir_hf import HomologyChecker, HomologyReport, Reason, SettledBy, Verdict, compare
from mdir_hf.comparison.plan import NOISE_AFTER_KEYS
from tests.comparison.relatives import (
    SIZES,
    drift,
    edited,
    new_embeddings,
    of_channels,
    renumbered,
    turned,
    with_layers,
)
from tests.method.obfuscation import logits, new_model, obfuscate
from tests.specimens import tokens

pytest.importorskip("transformers")


def judged(reference, candidate, **options) -> HomologyReport:
    return compare(reference, candidate, progress=False, **options)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_a_whole_obfuscation_is_found_by_its_keys(architecture, save):
    model = new_model(architecture, seed=0, **SIZES)
    hidden, _ = obfuscate(model, seed=3)
    # The norms of transformers compute in float32, whatever the dtype of the weights.
    assert torch.allclose(logits(model), logits(hidden), rtol=1e-4, atol=1e-4)
    report = judged(save(model, "base"), save(hidden, "hidden"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.KEYS)
    assert report.log10_p is None and not report.p_is_bound
    assert report.agreement == "all 64 tested neurons match"
    assert HomologyReport.from_json(report.to_json()) == report


def test_noise_behind_keys_needs_the_memory_of_both(save):
    model, other = (new_model(seed=seed, **SIZES) for seed in (0, 8))
    grafted, _ = obfuscate(model, seed=3)
    neurons = {name: weight for name, weight in other.state_dict().items() if ".mlp." in name}
    grafted.load_state_dict(neurons, strict=False)
    paths = [save(each, name) for each, name in ((model, "base"), (grafted, "grafted"))]
    checker = HomologyChecker.from_pretrained(paths[0])
    memory = dict(checker.plan(paths[1]).memory)
    assert memory["keys"] < memory[NOISE_AFTER_KEYS] and memory["noise"] < memory[NOISE_AFTER_KEYS]
    for missing_bytes in (0, 1):
        report = checker.compare(paths[1], max_memory_bytes=memory[NOISE_AFTER_KEYS] - missing_bytes, progress=False)
        assert report.reason is Reason.ATTENTION_ONLY
        was_left_out = any(caveat.startswith("Copies under noise were not searched") for caveat in report.caveats)
        assert was_left_out == bool(missing_bytes)
    report = checker.compare(paths[1], max_memory_bytes=memory["noise"] - 1, progress=False)
    assert sum("under noise" in caveat for caveat in report.caveats) == 1


def test_keys_find_a_relative_if_the_rows_of_the_noise_step_do_not_fit_in_memory(save):
    model = new_model(seed=0, **SIZES)
    paths = [save(each, name) for each, name in ((model, "base"), (obfuscate(model, seed=3)[0], "hidden"))]
    checker = HomologyChecker.from_pretrained(paths[0])
    plan = checker.plan(paths[1])
    memory = dict(plan.memory)
    assert memory["keys"] < memory["noise"]
    report = checker.compare(paths[1], max_memory_bytes=memory["noise"] - 1, progress=False)
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.KEYS)
    assert not any("--max-memory" in caveat for caveat in report.caveats)
    stranger = save(new_model(seed=8, **SIZES), "stranger")
    report = checker.compare(stranger, max_memory_bytes=memory["noise"] - 1, progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE and report.matrices
    assert report.warning.startswith("Copies under noise were not searched: there was too little memory.")
    report = checker.compare(stranger, max_memory_bytes=plan.least_memory_bytes, progress=False)
    assert not report.matrices
    assert any(caveat.startswith("The embeddings were not compared: that takes 4") for caveat in report.caveats)


@torch.no_grad()
def test_false_tokens_and_a_decoy_layer_do_not_hide_it(save):
    """Pairing layers by depth, or rows by token, finds nothing here."""
    model = new_model(seed=0, **SIZES)
    hidden = renumbered(edited(model, turned(model), noise=0.0))
    deeper = new_model(seed=4, **SIZES | {"num_hidden_layers": 5})
    deeper.model.embed_tokens.load_state_dict(hidden.model.embed_tokens.state_dict())
    deeper.lm_head.load_state_dict(hidden.lm_head.state_dict())
    deeper.model.norm.load_state_dict(hidden.model.norm.state_dict())
    for at in range(4):
        deeper.model.layers[at + 1].load_state_dict(hidden.model.layers[at].state_dict())
    decoy = deeper.model.layers[0]
    decoy.self_attn.o_proj.weight.zero_()
    decoy.mlp.down_proj.weight.zero_()
    words = tokens(160)
    report = judged(save(model, "base"), save(deeper, "hidden", words=words[::-1]))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.KEYS)
    assert all(match.candidate == match.reference + 1 for match in report.neurons.matches)


def test_layers_in_another_order_with_renumbered_neurons_are_found(base, save):
    candidate = renumbered(new_embeddings(drift(with_layers(base, [2, 0, 3, 1]), 0.1)))
    report = judged(save(base, "base"), save(candidate, "reordered"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.KEYS)
    ((source, place),) = report.neurons.matches
    assert [2, 0, 3, 1][place] == source


@torch.no_grad()
def test_split_neurons_are_found_by_the_sum_of_their_parts(base, save):
    """Parts share gate and down, and their ups add up to the neuron's; some pairs of new neurons cancel out."""
    n = SIZES["intermediate_size"]
    split = new_model(seed=9, **SIZES | {"intermediate_size": 2 * n})
    weights = {name: weight for name, weight in base.state_dict().items() if ".mlp." not in name}
    split.load_state_dict(weights, strict=False)
    generator = torch.Generator().manual_seed(1)
    for own, copied in zip(split.model.layers, base.model.layers, strict=True):
        order = torch.randperm(2 * n, generator=generator)
        up = copied.mlp.up_proj.weight
        rest = up.norm(dim=1, keepdim=True) * torch.randn(up.shape, generator=generator, dtype=up.dtype) / 96**0.5
        own.mlp.gate_proj.weight[order] = copied.mlp.gate_proj.weight.repeat(2, 1)
        own.mlp.up_proj.weight[order] = torch.cat([up / 2 + rest, up / 2 - rest])
        own.mlp.down_proj.weight[:, order] = copied.mlp.down_proj.weight.repeat(1, 2)
    report = judged(save(base, "base"), save(split, "split"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.KEYS)


@pytest.mark.parametrize("has_new_embeddings", [False, True])
def test_permuted_channels_and_neurons_are_found(base, save, has_new_embeddings):
    order = torch.randperm(96, generator=torch.Generator().manual_seed(2))
    candidate = renumbered(edited(base, of_channels(order)))
    candidate = new_embeddings(candidate) if has_new_embeddings else candidate
    report = judged(save(base, "base"), save(candidate, "permuted"))
    assert report.verdict is Verdict.HOMOLOGOUS and report.neurons.is_searched


def test_removed_channels_leave_neurons_in_place(base, save):
    kept = torch.randperm(96, generator=torch.Generator().manual_seed(2))[:80].sort().values
    narrow = edited(base, of_channels(kept), noise=0.05, hidden_size=80)
    report = judged(save(base, "base"), save(new_embeddings(narrow), "narrow"))
    assert report.verdict is Verdict.HOMOLOGOUS and report.candidate.hidden_size == 80


@pytest.mark.parametrize("kept", ["q", "down", "v"])
def test_one_kept_projection_is_no_evidence(base, save, kept):
    candidate = new_model(seed=9, **SIZES)
    weights = {name: weight for name, weight in base.state_dict().items() if name.endswith(f"{kept}_proj.weight")}
    candidate.load_state_dict(weights, strict=False)
    report = judged(save(base, "base"), save(candidate, "one-kept"), level="layers")
    assert report.verdict is Verdict.NO_EVIDENCE
    # The table says that these rows agree, and the verdict does not rest on them.
    agreeing = {result.role.value for result in report.projections.results if result.outcome.value == "rows_agree"}
    assert kept in agreeing and not report.projections.is_confirmed


def test_wrong_heads_in_the_config_do_not_stop_a_comparison(base, save):
    import json

    folders = [save(base, "base"), save(renumbered(drift(copy.deepcopy(base), 0.2)), "x")]
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        config |= {"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": None}
        (folder / "config.json").write_text(json.dumps(config))
    assert judged(*folders).verdict is Verdict.HOMOLOGOUS
