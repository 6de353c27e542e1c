"""Strangers that were changed to look like relatives are not called homologous, unless they hold copied rows."""

import copy

import pytest
import torch

from mdir_hf import Reason, Verdict, compare
from mdir_hf.report import Outcome
from tests.comparison.relatives import SIZES, drift, edited, renumbered, turned
from tests.method.obfuscation import new_model

pytest.importorskip("transformers")


@torch.no_grad()
def polar_factor_onto(victim, stranger):
    """The rotation that maps the stranger's embeddings closest to the victim's."""
    left, _, right = torch.linalg.svd(stranger.model.embed_tokens.weight.T @ victim.model.embed_tokens.weight)
    return left @ right


@pytest.mark.parametrize("level", ["auto", "layers"])
def test_a_rotated_stranger_is_not_homologous(base, save, level):
    stranger = new_model(seed=9, **SIZES)
    framed = edited(stranger, turned(stranger, turn=polar_factor_onto(base, stranger)))
    report = compare(save(base, "victim"), save(framed, "framed"), level=level, progress=False)
    assert report.embedding.is_significant and report.embedding.log10_p < -100  # which alone would accuse it
    assert (report.verdict, report.log10_p) == (Verdict.NO_EVIDENCE, 0.0)
    assert any("alike but not copies" in caveat for caveat in report.caveats)
    assert report.projections is None or reports_no_copies(report.projections)
    assert report.layers is None or report.layers.matches == ()


def reports_no_copies(table):
    outcomes = set(table.counts()) - {Outcome.NOT_COMPARED}
    return not table.is_confirmed and outcomes <= {Outcome.ROWS_AGREE, Outcome.NO_AGREEMENT}


def test_neurons_renumbered_to_match_are_not_homologous(base, save):
    """Each neuron of the stranger takes the number of the victim's neuron that it resembles most, for a known seed."""
    stranger = new_model(seed=9, **SIZES)
    framed = edited(stranger, turned(stranger, turn=polar_factor_onto(base, stranger)), noise=0.0)
    with torch.no_grad():
        for own, other in zip(framed.model.layers, base.model.layers, strict=True):
            likeness = own.mlp.up_proj.weight @ other.mlp.up_proj.weight.T
            from scipy.optimize import linear_sum_assignment

            order = torch.from_numpy(linear_sum_assignment(likeness.T.numpy(), maximize=True)[1])
            for part in (own.mlp.gate_proj, own.mlp.up_proj):
                part.weight.copy_(part.weight[order].clone())
            own.mlp.down_proj.weight.copy_(own.mlp.down_proj.weight[:, order].clone())
    report = compare(save(base, "victim"), save(framed, "framed"), progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.neurons.most_certain <= 14  # the most that any framed model reached without copied rows


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


@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_a_copied_row_is_a_copied_row_whatever_it_does(base, save, scale):
    shared = with_copied_mlps(base, new_model(seed=9, **SIZES), share=0.92, scale=scale)
    report = compare(save(base, "victim"), save(shared, "shared"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert any("not how much they do" in sentence for sentence in report.does_not_mean)


def test_rows_of_zeros_are_no_copies(base, save):
    framed = with_copied_mlps(base, new_model(seed=9, **SIZES), share=0.92, scale=0.0)
    report = compare(save(base, "victim"), save(framed, "framed"), progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE


def test_copied_embeddings_alone_are_inconclusive(base, save):
    framed = new_model(seed=9, **SIZES)
    framed.model.embed_tokens.load_state_dict(drift(copy.deepcopy(base), 0.2).model.embed_tokens.state_dict())
    report = compare(save(base, "victim"), save(framed, "framed"), progress=False)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    assert report.embedding.is_copied


def test_copied_attention_alone_is_inconclusive(base, save):
    framed = new_model(seed=9, **SIZES)
    for own, other in zip(framed.model.layers, base.model.layers, strict=True):
        own.self_attn.load_state_dict(other.self_attn.state_dict())
        own.input_layernorm.load_state_dict(other.input_layernorm.state_dict())
    framed = edited(framed, turned(framed), noise=0.0)
    report = compare(save(base, "victim"), save(framed, "framed"), progress=False)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.ATTENTION_ONLY)


@torch.no_grad()
def pruned_rows(model, share):
    """Keep only the largest entries of every row in every layer's matrices."""
    for weight in model.model.layers.parameters():
        if weight.ndim == 2:
            n_kept = max(1, round(share * weight.shape[1]))
            least = weight.abs().topk(n_kept, dim=1).values[:, -1:]
            weight *= weight.abs() >= least
    return model


@torch.no_grad()
def cubed(model):
    for weight in model.model.layers.parameters():
        if weight.ndim == 2:
            weight.copy_(weight**3 / weight.std() ** 2)
    return model


@torch.no_grad()
def heavy_rows(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for weight in model.model.layers.parameters():
        if weight.ndim == 2:
            weight *= (1.5 * torch.randn(len(weight), 1, generator=generator, dtype=weight.dtype)).exp()
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda model, seed: pruned_rows(model, 0.05),
        lambda model, seed: pruned_rows(model, 0.15),
        lambda model, seed: cubed(model),
        heavy_rows,
        lambda model, seed: renumbered(model, seed),
    ],
    ids=["5 % of the entries", "15 % of the entries", "cubed", "heavy rows", "renumbered"],
)
def test_strangers_with_odd_weights_are_not_homologous(save, change):
    folders = [save(change(new_model(seed=seed, **SIZES), seed), f"model-{seed}") for seed in (0, 9)]
    report = compare(*folders, progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE


@torch.no_grad()
def without_output(victim):
    """A stranger whose MLPs hold the victim's neurons, whose outputs are dropped."""
    idle = new_model(seed=9, **SIZES)
    for own, copied in zip(idle.model.layers, victim.model.layers, strict=True):
        own.mlp.load_state_dict(copied.mlp.state_dict())
        own.post_attention_layernorm.load_state_dict(copied.post_attention_layernorm.state_dict())
        own.mlp.down_proj.weight.zero_()
    return idle


@torch.no_grad()
def of_unwritten_directions(victim):
    """A stranger of twice the width, whose first channels nothing writes; the victim's neurons read only these."""
    idle = new_model(seed=9, **{**SIZES, "hidden_size": 192})
    idle.model.embed_tokens.weight[:, :96] = 0.0
    for own, copied in zip(idle.model.layers, victim.model.layers, strict=True):
        own.self_attn.o_proj.weight[:96] = own.mlp.down_proj.weight[:96] = 0.0
        for new, old in ((own.mlp.gate_proj, copied.mlp.gate_proj), (own.mlp.up_proj, copied.mlp.up_proj)):
            new.weight.zero_()
            new.weight[:, :96] = old.weight * copied.post_attention_layernorm.weight
        own.post_attention_layernorm.weight[:96] = 1.0
    return idle


@torch.no_grad()
def behind_closed_gates(victim):
    """Cross-attention layers of an Mllama whose gates are zero hold the victim's MLPs."""
    from transformers import MllamaForCausalLM
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig

    torch.manual_seed(9)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    sizes = {name: SIZES[name] for name in names} | {"vocab_size": victim.config.vocab_size, "num_hidden_layers": 8}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = MllamaTextConfig(**sizes, **tokens, cross_attention_layers=[1, 3, 5, 7], rope_parameters=rope)
    idle = MllamaForCausalLM(config).double().eval()
    for number, copied in zip((1, 3, 5, 7), victim.model.layers, strict=True):
        own = idle.model.layers[number]
        own.mlp.load_state_dict(copied.mlp.state_dict())
        own.post_attention_layernorm.load_state_dict(copied.post_attention_layernorm.state_dict())
        assert own.cross_attn_mlp_gate == 0
    return idle


@torch.no_grad()
def mamba(seed):
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(seed)
    config = MambaConfig(vocab_size=160, hidden_size=96, state_size=8, num_hidden_layers=4, tie_word_embeddings=False)
    model = MambaForCausalLM(config).double().eval()
    for layer in model.backbone.layers:
        layer.norm.weight.copy_(0.5 + torch.rand(96))
        layer.mixer.in_proj.weight.normal_(std=0.1)
    return model


@torch.no_grad()
def behind_a_zero_convolution(victim):
    """Channels of a Mamba whose convolution is zero hold the victim's."""
    idle = mamba(9)
    for own, copied in zip(idle.backbone.layers, victim.backbone.layers, strict=True):
        own.mixer.in_proj.weight.copy_(copied.mixer.in_proj.weight)
        own.mixer.conv1d.weight.zero_()
        own.mixer.conv1d.bias.zero_()
        own.norm.load_state_dict(copied.norm.state_dict())
    return idle


IDLE = {
    "no output": without_output,
    "directions that nothing writes": of_unwritten_directions,
    "closed gates": behind_closed_gates,
    "a zero convolution": behind_a_zero_convolution,
}


@pytest.mark.parametrize("kind", IDLE)
def test_the_sentence_on_copies_that_do_nothing_is_true(base, save, kind):
    """The model shares weights with the victim; no sentence says that these weights do anything."""
    is_mamba = kind == "a zero convolution"
    victim, other = (mamba(0), mamba(5)) if is_mamba else (base, new_model(seed=5, **SIZES))
    with_copies, with_others = IDLE[kind](victim), IDLE[kind](other)
    tokens = torch.randint(160, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(with_copies(tokens).logits, with_others(tokens).logits)
    report = compare(save(victim, "victim"), save(with_copies, "idle"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and "share weights" in report.sentence
    assert any("not how much they do" in sentence for sentence in report.does_not_mean)
    control = compare(save(victim, "victim"), save(with_others, "other"), progress=False)
    assert control.verdict is Verdict.NO_EVIDENCE
