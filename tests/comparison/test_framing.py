"""Strangers that were changed to look like relatives are not called homologous."""

import copy
import json

import pytest
import torch

from mdir_hf import Reason, Verdict, compare
from mdir_hf.comparison.neuron_reading import take_neurons
from mdir_hf.comparison.neuron_sample import NeuronOutputs
from mdir_hf.comparison.neuron_search import NeuronRows, merged_outputs
from mdir_hf.comparison.neuron_strengths import stream_rows
from mdir_hf.comparison.neurons import _is_idle
from mdir_hf.errors import AnatomyError
from mdir_hf.method.neuron_numbers import NeuronMatches, sample_neurons
from mdir_hf.method.neurons import mean_square_of_outputs, unit_rows
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.report import Outcome
from tests.comparison.test_body import drift
from tests.comparison.test_residual_maps import edited, turned
from tests.method.obfuscation import new_model
from tests.specimens import tokenizer_json, tokens

pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 16,
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_sample(monkeypatch):
    """Draw the same neurons in every run: by chance, a sample may contain faint copies alone (0.4% of samples)."""
    monkeypatch.setattr("mdir_hf.comparison.run.draw_sample_seed", lambda: 20)


@pytest.fixture
def save(tmp_path):
    def save_model(model, name):
        copy.deepcopy(model).float().save_pretrained(tmp_path / name)
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(model.config.vocab_size))))
        return tmp_path / name

    return save_model


@pytest.fixture
def victim():
    return new_model(seed=0, **SIZES)


@torch.no_grad()
def polar_factor_onto(victim, stranger):
    """The rotation that maps the stranger's embeddings closest to the victim's."""
    left, _, right = torch.linalg.svd(stranger.model.embed_tokens.weight.T @ victim.model.embed_tokens.weight)
    return left @ right


@pytest.mark.parametrize("level", ["auto", "layers"])
def test_a_rotated_stranger_is_not_homologous(victim, save, level):
    stranger = new_model(seed=9, **SIZES)
    framed = edited(stranger, turned(stranger, turn=polar_factor_onto(victim, stranger)))
    report = compare(save(victim, "victim"), save(framed, "framed"), level=level, progress=False)
    assert report.embedding.log10_p < -100  # the embeddings alone would have given a false verdict
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    assert report.log10_p == 0.0 and not report.neurons.matches
    assert report.projections is None or reports_no_copies(report.projections)


def reports_no_copies(table):
    outcomes = set(table.counts()) - {Outcome.NOT_COMPARED}
    return not table.is_confirmed and outcomes <= {Outcome.ROWS_AGREE, Outcome.NO_AGREEMENT}


@torch.no_grad()
def with_copied_mlps(victim, stranger, *, share, scale):
    """Replace the stranger's first neurons with the victim's, with up and down multiplied by ``scale``."""
    for own, copied in zip(stranger.model.layers, victim.model.layers, strict=True):
        n_copied = int(share * len(own.mlp.up_proj.weight))
        own.post_attention_layernorm.weight.copy_(copied.post_attention_layernorm.weight)
        own.mlp.gate_proj.weight[:n_copied] = copied.mlp.gate_proj.weight[:n_copied]
        own.mlp.up_proj.weight[:n_copied] = scale * copied.mlp.up_proj.weight[:n_copied]
        own.mlp.down_proj.weight[:, :n_copied] = scale * copied.mlp.down_proj.weight[:, :n_copied]
    return stranger


@pytest.mark.parametrize("scale", [0.0, 0.1])
def test_copies_without_effect_are_not_homologous(victim, save, scale):
    framed = with_copied_mlps(victim, new_model(seed=9, **SIZES), share=0.92, scale=scale)
    report = compare(save(victim, "victim"), save(framed, "framed"), level="layers", progress=False)
    assert report.verdict is Verdict.INCONCLUSIVE
    # Rows of the copies agree, but the table does not call them kept.
    assert reports_no_copies(report.projections) and Outcome.ROWS_AGREE in report.projections.counts()
    if scale:  # a neuron of zeros has no row of up that could agree
        assert report.neurons.idle
        assert any("copied rows that do little or nothing" in caveat for caveat in report.caveats)


@pytest.mark.parametrize("level", ["auto", "layers"])
def test_faint_copies_are_not_homologous_if_only_copies_are_sampled(victim, save, level, monkeypatch):
    """The stranger's own neurons, 8 % of the layer, do all the work, and none of them is sampled."""
    n_copied = int(0.92 * SIZES["intermediate_size"])
    monkeypatch.setattr(
        "mdir_hf.comparison.neuron_reading.sample_neurons",
        lambda n_neurons, n, *, run, seed: sample_neurons(n_copied, n, run=run, seed=seed),
    )
    framed = with_copied_mlps(victim, new_model(seed=9, **SIZES), share=0.92, scale=0.3)
    report = compare(save(victim, "victim"), save(framed, "framed"), level=level, progress=False)
    assert report.verdict is not Verdict.HOMOLOGOUS
    assert report.neurons.idle and not report.neurons.matches


@torch.no_grad()
def test_faint_copies_are_not_homologous_if_own_neurons_are_split(victim, save):
    """A neuron split in four equal parts has a quarter of the sum of squares, but computes the same."""
    sizes = SIZES | {"intermediate_size": 512}
    victim, n_copied, n_own = new_model(seed=0, **sizes), 416, 24
    framed = with_copied_mlps(victim, new_model(seed=9, **sizes), share=n_copied / 512, scale=0.3)
    for layer in framed.model.layers:
        for rows in (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight):
            rows[n_copied:] = rows[n_copied : n_copied + n_own].repeat(4, 1)
        columns = layer.mlp.down_proj.weight
        columns[:, n_copied:] = (columns[:, n_copied : n_copied + n_own] / 4.0).repeat(1, 4)
    report = compare(save(victim, "victim"), save(framed, "framed"), progress=False)
    assert report.verdict is not Verdict.HOMOLOGOUS and report.neurons.idle


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("has_gate", [False, True])
def test_the_mean_square_of_outputs_does_not_depend_on_splitting(parts, has_gate):
    generator = torch.Generator().manual_seed(4)
    rows = [unit_rows(torch.randn(40, 64, generator=generator)) for _ in range(1 + has_gate)]
    outputs = torch.randn(40, 12, generator=generator)
    split = [torch.cat([matrix] * parts) for matrix in rows]
    of_parts = torch.cat([share * outputs for share in ([1.0] if parts == 1 else [0.2, 0.3, 0.5])])
    total = 40 * parts * mean_square_of_outputs(split, of_parts, n_neurons=40 * parts)
    assert total == pytest.approx(float(outputs.square().sum()), rel=1e-5)  # float32 sums of 500 terms


def test_a_sample_of_copies_at_full_strength_needs_no_further_neurons(victim, save, monkeypatch):
    monkeypatch.setattr("mdir_hf.comparison.witness.with_mean_squares", None)  # a call would raise
    tuned = drift(copy.deepcopy(victim), 0.1)
    report = compare(save(victim, "victim"), save(tuned, "tuned"), level="layers", progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and report.neurons.matches


def test_a_strong_neuron_with_its_own_number_by_chance_does_not_make_copies_work():
    """60 of 64 neurons are idle copies; one of the stranger's has its own number and its full output."""
    is_certain = torch.arange(64) < 60
    matches = NeuronMatches(is_own=is_certain | (torch.arange(64) == 60), is_certain=is_certain)
    fitted = torch.cat([torch.full((60,), 0.01), torch.ones(4)])
    idle = torch.cat([fitted, torch.full((60,), 0.01), torch.tensor([2.0, 1.0, 1.0, 1.0])])
    rows = torch.zeros(1, 128, 4)
    sides = [NeuronOutputs(rows, strengths[None], 1.0, 0.0, None) for strengths in (torch.ones(128), idle)]
    assert _is_idle(*sides, (0, 0), [[matches]], 64, is_searched=False)
    working = NeuronOutputs(rows, torch.ones(1, 128), 1.0, 0.0, None)
    assert not _is_idle(sides[0], working, (0, 0), [[matches]], 64, is_searched=False)


@torch.no_grad()
def with_biases(model, *, n_shut, lengths):
    """A copy of a model whose first gates have a bias of minus this multiple of their norms."""
    model.config.mlp_bias = True
    biased = type(model)(model.config)
    biased.load_state_dict(model.state_dict(), strict=False)
    for layer in biased.model.layers:
        for part in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            part.bias.zero_()
        gates = layer.mlp.gate_proj.weight * layer.post_attention_layernorm.weight
        layer.mlp.gate_proj.bias[:n_shut] = -lengths * gates[:n_shut].norm(dim=1)
    return biased


@pytest.mark.parametrize("lengths", [1.5, 2.5, 3.9])
def test_copies_disabled_by_a_bias_are_not_homologous(victim, save, lengths):
    framed = with_copied_mlps(victim, new_model(seed=9, **SIZES), share=0.92, scale=1.0)
    framed = with_biases(framed, n_shut=int(0.92 * SIZES["intermediate_size"]), lengths=lengths)
    report = compare(save(victim, "victim"), save(framed, "framed"), progress=False)
    assert report.verdict is Verdict.INCONCLUSIVE and report.neurons.idle


@pytest.mark.parametrize(("lengths", "is_idle"), [(0.2, False), (0.8, True)])
def test_copies_are_idle_if_their_gates_moved_far_together(victim, save, lengths, is_idle):
    framed = with_copied_mlps(victim, new_model(seed=9, **SIZES), share=0.92, scale=1.0)
    n_copied = int(0.92 * SIZES["intermediate_size"])
    direction = torch.nn.functional.normalize(torch.randn(96, generator=torch.Generator().manual_seed(2)), dim=0)
    with torch.no_grad():
        for layer in framed.model.layers:
            gates, gain = layer.mlp.gate_proj.weight[:n_copied], layer.post_attention_layernorm.weight
            gates -= lengths * (gates * gain).norm(dim=1, keepdim=True) * direction / gain
    report = compare(save(victim, "victim"), save(framed, "framed"), progress=False)
    assert (report.verdict is not Verdict.HOMOLOGOUS) is is_idle and bool(report.neurons.idle) is is_idle


@torch.no_grad()
def with_late_constant(model, *, lengths, n_shut=0, shift=0.0):
    """A copy whose first layer adds a constant of this many embedding norms and whose later gates are shifted."""
    model = with_biases(model, n_shut=0, lengths=0.0)
    first, *later = model.model.layers
    embedding_length = model.model.embed_tokens.weight.norm(dim=1).median()
    direction = torch.nn.functional.normalize(torch.randn(96, generator=torch.Generator().manual_seed(2)), dim=0)
    first.mlp.down_proj.bias.copy_(lengths * embedding_length * direction)
    first.mlp.down_proj.weight[:, :n_shut] = 0.0  # the layer's own copies cannot read the constant
    for layer in later:
        gates, gain = layer.mlp.gate_proj.weight[:n_shut], layer.post_attention_layernorm.weight
        along = (gates * gain) @ direction + shift * (gates * gain).norm(dim=1)
        gates -= along[:, None] * direction / gain
    return model


@torch.no_grad()
def with_reordered_neurons(model):
    """Renumber the neurons of every MLP, which preserves the function."""
    order = torch.randperm(SIZES["intermediate_size"], generator=torch.Generator().manual_seed(4))
    for layer in model.model.layers:
        for part in (layer.mlp.gate_proj, layer.mlp.up_proj):
            part.weight.copy_(part.weight[order])
        layer.mlp.down_proj.weight.copy_(layer.mlp.down_proj.weight[:, order])
    return model


@pytest.mark.parametrize("is_reordered", [False, True])
def test_copies_disabled_by_an_earlier_bias_are_not_homologous(victim, save, is_reordered):
    framed = with_copied_mlps(victim, new_model(seed=9, **SIZES), share=0.92, scale=1.0)
    framed = with_late_constant(framed, lengths=50.0, n_shut=int(0.92 * SIZES["intermediate_size"]), shift=0.1)
    framed = with_reordered_neurons(framed) if is_reordered else framed
    report = compare(save(victim, "victim"), save(framed, "framed"), level="layers", progress=False)
    assert report.verdict is Verdict.INCONCLUSIVE and report.neurons.idle and not report.neurons.matches
    assert report.neurons.is_searched is is_reordered


def test_a_relative_with_a_large_constant_is_found(victim, save):
    victim = with_late_constant(victim, lengths=50.0)
    tuned = drift(copy.deepcopy(victim), 0.1)
    report = compare(save(victim, "victim"), save(tuned, "tuned"), level="layers", progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and not report.neurons.idle


def test_a_model_whose_biases_were_trained_a_little_is_found(victim, save):
    tuned = with_biases(drift(copy.deepcopy(victim), 0.1), n_shut=SIZES["intermediate_size"], lengths=0.05)
    report = compare(save(victim, "victim"), save(tuned, "tuned"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and not report.neurons.idle


@torch.no_grad()
def with_layers_of(victim, stranger, *, gain, output):
    """Insert a copy of each of the victim's layers after a layer of the stranger."""
    n = SIZES["num_hidden_layers"]
    both = new_model(seed=9, **SIZES | {"num_hidden_layers": 2 * n})
    both.model.embed_tokens.load_state_dict(stranger.model.embed_tokens.state_dict())
    for at in range(n):
        both.model.layers[2 * at].load_state_dict(stranger.model.layers[at].state_dict())
        quiet = both.model.layers[2 * at + 1]
        quiet.load_state_dict(victim.model.layers[at].state_dict())
        for norm in (quiet.input_layernorm, quiet.post_attention_layernorm):
            norm.weight *= gain
        for writer in (quiet.self_attn.o_proj, quiet.mlp.down_proj):
            writer.weight *= output
    return both


@pytest.mark.parametrize(("gain", "output"), [(0.35, 1.0), (1.0, 0.05), (0.003, 1.0)])
def test_copied_layers_with_tiny_outputs_are_not_homologous(victim, save, gain, output):
    framed = with_layers_of(victim, new_model(seed=9, **SIZES), gain=gain, output=output)
    report = compare(save(victim, "victim"), save(framed, "framed"), level="layers", progress=False)
    assert report.verdict is not Verdict.HOMOLOGOUS
    assert report.neurons.idle and not report.neurons.matches


def test_working_copied_layers_are_homologous(victim, save):
    shared = with_layers_of(victim, new_model(seed=9, **SIZES), gain=1.0, output=1.0)
    report = compare(save(victim, "victim"), save(shared, "shared"), level="layers", progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and report.neurons.matches


def test_further_layers_count_for_the_strongest_if_they_can_be_read(victim, save, monkeypatch):
    victim = copy.deepcopy(victim)
    with torch.no_grad():
        victim.model.layers[2].mlp.down_proj.weight *= 10.0
    model = Model(open_repository(str(save(victim, "victim"))))

    def sampled():
        outputs = take_neurons(model, places=(0, 1), n_down_channels=None).outputs
        return outputs.strongest / float(outputs.strengths.square().mean().sqrt())

    assert sampled() > 5.0

    def raises(*arguments):
        raise AnatomyError("layer 2 has no down")

    monkeypatch.setattr("mdir_hf.comparison.neuron_strengths.read_outputs", raises)
    assert sampled() < 1.2  # both layers are sampled alike


@torch.no_grad()
def test_offsets_are_what_neurons_read_at_a_stream_of_zeros(save):
    """GPT-2: a norm with a gain and a bias, then a matrix with a bias."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=48, n_layer=1, n_head=4))
    block = model.transformer.h[0]
    for weight in (block.ln_2.weight, block.ln_2.bias, block.mlp.c_fc.bias):
        weight.normal_()
    sample = take_neurons(Model(open_repository(str(save(model, "gpt2")))), n_down_channels=None)
    lengths = (block.ln_2.weight[:, None] * block.mlp.c_fc.weight).norm(dim=0)
    read = block.mlp.c_fc(block.ln_2(torch.zeros(48))) / lengths
    # float32: sums of 48 products of numbers around 1
    torch.testing.assert_close(sample.outputs.offsets[0], read[torch.from_numpy(sample.numbers)], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_constants_are_what_neurons_read_of_earlier_biases(save):
    """GPT-2 with a constant stream: a norm subtracts the mean and divides by the deviation."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=48, n_layer=2, n_head=4))
    for name, weight in model.named_parameters():
        if "ln_2" in name or "bias" in name:
            weight.normal_()
    first, second = model.transformer.h
    constant = first.attn.c_proj.bias + first.mlp.c_proj.bias + second.attn.c_proj.bias
    sample = take_neurons(Model(open_repository(str(save(model, "gpt2")))), n_down_channels=None)
    outputs, numbers = sample.outputs, torch.from_numpy(sample.numbers)
    lengths = (second.ln_2.weight[:, None] * second.mlp.c_fc.weight).norm(dim=0)
    read = (second.mlp.c_fc(second.ln_2(constant)) / lengths)[numbers]
    offsets, size = outputs.offsets[1], float((constant - constant.mean()).norm())
    varying = outputs.stream_scale
    expected = ((read - offsets) * size + offsets * (size**2 + varying**2) ** 0.5) / varying
    # The norm's epsilon is 1e-5 of a variance of about 3; float32 sums of 48 products of numbers around 1.
    torch.testing.assert_close(outputs.constants[1], expected, atol=1e-2, rtol=1e-4)
    assert torch.equal(sample.for_storage().tensors()["neurons.constants"], outputs.constants)  # in fingerprints


def scaled_model(name):
    """Return a model whose family multiplies embedding rows, or, for ``plain``, can do so, and its first stream."""
    import transformers

    sizes = {"vocab_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    sizes |= {"hidden_size": 48, "num_key_value_heads": 4, "head_dim": 12, "pad_token_id": 0}
    torch.manual_seed(3)
    if name in ("xglm", "plain"):  # its positions are added before the first layer
        names = {"d_model": 48, "num_layers": 2, "attention_heads": 4, "ffn_dim": 192}
        config = transformers.XGLMConfig(vocab_size=64, scale_embedding=name == "xglm", **names)
        model = transformers.XGLMForCausalLM(config)
        return model, model.model.embed_tokens(torch.arange(64))
    if name == "granite":
        model = transformers.GraniteForCausalLM(transformers.GraniteConfig(embedding_multiplier=12.0, **sizes))
    else:
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**sizes))
    streams = []
    model.model.layers[0].register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0][0]))
    model(torch.arange(64)[None])
    return model, streams[0]


@torch.no_grad()
@pytest.mark.parametrize("name", ["xglm", "plain", "granite", "gemma2"])
def test_the_stream_has_the_scale_that_the_model_gives_the_embedding(save, name):
    model, first_stream = scaled_model(name)
    stream = stream_rows(Model(open_repository(str(save(model, name)))), seed=0)
    lengths = first_stream.norm(dim=1)
    assert len(stream) > 4 and bool(lengths.max() > 0.0)
    # Lengths are at most 20; Gemma rounds the factor to the precision of the weights.
    assert all(float((lengths - length).abs().min()) < 1e-4 for length in stream.norm(dim=1))


@pytest.mark.parametrize("n_unused", [0, 8])
def test_gates_disabled_by_a_constant_channel_have_no_strength(victim, save, n_unused):
    """Unused tokens with the opposite constant hide it from the mean of all rows, but the used tokens still have it."""
    model, n_shut = copy.deepcopy(victim), 120
    with torch.no_grad():
        rows = model.model.embed_tokens.weight
        is_unused = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)) < len(rows) * n_unused // 16
        rows[:, 0] = 20.0 * rows.norm(dim=1) * torch.where(is_unused, -1.0, 1.0)
        gates = model.model.layers[0].mlp.gate_proj.weight
        gates[:, 0] = 0.0
        gates[:n_shut, 0] = -gates[:n_shut].norm(dim=1)
    sample = take_neurons(Model(open_repository(str(save(model, "shut")))), every=True, n_down_channels=None)
    assert torch.equal(sample.outputs.strengths[0] == 0.0, torch.from_numpy(sample.numbers) < n_shut)


def test_working_copies_of_most_neurons_are_homologous(victim, save):
    shared = with_copied_mlps(victim, new_model(seed=9, **SIZES), share=0.92, scale=1.0)
    report = compare(save(victim, "victim"), save(shared, "shared"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS


def test_a_copy_with_split_neurons_is_found(victim, save):
    """Parts of a neuron share its output and scale up against down: together they compute the same as the neuron."""
    n = SIZES["intermediate_size"]
    split = new_model(seed=9, **SIZES | {"intermediate_size": 2 * n})
    split.load_state_dict(
        {name: weight for name, weight in victim.state_dict().items() if ".mlp." not in name}, strict=False
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for own, copied in zip(split.model.layers, victim.model.layers, strict=True):
            order = torch.randperm(2 * n, generator=generator)
            share = torch.rand(n, generator=generator)
            own.mlp.gate_proj.weight[order] = copied.mlp.gate_proj.weight.repeat(2, 1)
            own.mlp.up_proj.weight[order] = torch.cat([copied.mlp.up_proj.weight, -2.0 * copied.mlp.up_proj.weight])
            own.mlp.down_proj.weight[:, order] = torch.cat(
                [share * copied.mlp.down_proj.weight, (1.0 - share) * copied.mlp.down_proj.weight / -2.0], dim=1
            )
    report = compare(save(victim, "victim"), save(split, "split"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and not report.neurons.idle


def test_only_neurons_with_equal_activations_add_up():
    generator = torch.Generator().manual_seed(3)
    gate, up, outputs = (torch.randn(8, 32, generator=generator) for _ in range(3))
    gate_bias = torch.zeros(8)
    gate[1], up[1] = gate[0], -2.0 * up[0]  # a part of neuron 0
    gate[3], up[3], gate_bias[3] = gate[2], up[2], -60.0  # shut, unlike neuron 2
    gate[5], up[5] = 2.0 * gate[4], up[4]  # SiLU(2 x) is not 2 SiLU(x)
    gate[7], up[7] = 0.0, 0.0
    rows = [
        NeuronRows(unit_rows(matrix), matrix.norm(dim=1), bias)
        for matrix, bias in ((gate, gate_bias), (up, torch.zeros(8)))
    ]
    merged, is_merged = merged_outputs(rows, outputs, torch.tensor([0, 2, 4, 7]))
    assert torch.allclose(merged[0], outputs[0] - 2.0 * outputs[1], atol=1e-5)  # float32, numbers around 1
    assert torch.equal(merged[1:], outputs[[2, 4, 7]])
    assert is_merged.sum(dim=1).tolist() == [2, 1, 1, 1]


def test_copied_neurons_that_cancel_out_are_not_homologous(victim, save):
    n = SIZES["intermediate_size"]
    framed = new_model(seed=9, **SIZES | {"intermediate_size": 3 * n})
    with torch.no_grad():
        framed.model.embed_tokens.weight.copy_(victim.model.embed_tokens.weight)
        for own, copied in zip(framed.model.layers, victim.model.layers, strict=True):
            own.post_attention_layernorm.weight.copy_(copied.post_attention_layernorm.weight)
            for first, sign in ((0, 1.0), (n, -1.0)):
                own.mlp.gate_proj.weight[first : first + n] = copied.mlp.gate_proj.weight
                own.mlp.up_proj.weight[first : first + n] = copied.mlp.up_proj.weight
                own.mlp.down_proj.weight[:, first : first + n] = sign * copied.mlp.down_proj.weight
    report = compare(save(victim, "victim"), save(framed, "framed"), progress=False)
    assert report.verdict is Verdict.INCONCLUSIVE and report.neurons.idle
