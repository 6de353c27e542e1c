"""If the embeddings show nothing, the layers do: retrained, rotated, deepened and pruned relatives, and strangers."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter

import pytest
import torch
from mdir_hf.comparison.layers import compare_layers
from mdir_hf.method.map_evidence import log_p_of_all_layers

from mdir_hf import HomologyChecker, Reason, Verdict
from mdir_hf.comparison import residual_maps
from mdir_hf.comparison.projections import layer_maps
from mdir_hf.comparison.settings import Settings
from mdir_hf.model.files.ranged import RangedTensors
from mdir_hf.model.hub import IoLedger, RepositoryOptions, open_repository
from mdir_hf.model.hub.local import LocalFile
from mdir_hf.model.open import Reading
from mdir_hf.model.opened import Model
from tests.method.obfuscation import logits, new_model, obfuscate
from tests.specimens import tokenizer_json, tokens

pytestmark = pytest.mark.usefixtures("without_neuron_numbers")

pytest.importorskip("transformers")

V = 160  # the vocabulary size of tests.method.obfuscation, whose logits take such tokens
SIZES = {
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 16,
}  # fmt: skip


@pytest.fixture
def save(tmp_path, monkeypatch):
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()

    def save_model(model, name, *, words=None):
        copy.deepcopy(model).float().save_pretrained(tmp_path / name)
        vocabulary = words or tokens(V)
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary)))
        return tmp_path / name

    return save_model


def new_gpt2(seed, *, hidden_size, num_hidden_layers, num_attention_heads, **_):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    sizes = {"n_embd": hidden_size, "n_layer": num_hidden_layers, "n_head": num_attention_heads}
    return GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=32, **sizes))


@pytest.fixture
def base():
    return new_model(seed=0, **SIZES)


def compare(reference, candidate, **options):
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False, **options)


@torch.no_grad()
def drift(model, share, seed=1):
    """Add Gaussian noise to every matrix, in proportion to its standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim == 2:
            weight += share * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return model


@torch.no_grad()
def new_embeddings(model, seed=5):
    generator = torch.Generator().manual_seed(seed)
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        weight.copy_(0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model


def test_a_model_with_new_embeddings_is_found_by_its_layers(base, save):
    candidate = save(drift(new_embeddings(copy.deepcopy(base)), 0.3), "retrained")
    report = compare(save(base, "base"), candidate)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.settled_by == "layers"
    assert report.layers.residual_map == "identity"
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    assert report.embedding.transformation == "none"


@pytest.mark.parametrize("kept", ["q", "down"])
def test_one_kept_projection_is_inconclusive(base, save, kept):
    candidate = new_model(seed=9, **SIZES)
    weights = {name: weight for name, weight in base.state_dict().items() if name.endswith(f"{kept}_proj.weight")}
    candidate.load_state_dict(weights, strict=False)
    folders = save(base, "base"), save(candidate, "one-kept")
    report = compare(*folders, level="layers")
    # The layers agree in this projection and are named. A second witness needs gate, up and down of the same neurons.
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.LAYERS_UNCONFIRMED)
    assert report.layers.role == kept
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    assert compare(*folders).verdict is Verdict.NO_EVIDENCE  # level auto does not read this projection


def test_without_a_common_vocabulary_layers_are_compared(base, save):
    candidate = save(drift(copy.deepcopy(base), 0.3), "renamed", words=tokens(V, first=1000))
    report = compare(save(base, "base"), candidate)
    assert report.embedding.common_tokens == 0
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.layers.residual_map == "identity"


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_a_whole_obfuscation_is_found_at_level_auto_and_named(architecture, save):
    model = new_model(architecture, seed=0, **SIZES)
    hidden, _ = obfuscate(model, seed=3)
    # The norms of transformers compute in float32, whatever the dtype of the weights.
    assert torch.allclose(logits(model), logits(hidden), rtol=1e-4, atol=1e-4)
    report = compare(save(model, "base"), save(hidden, "hidden"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.log10_p == 0.0
    assert report.embedding.transformation == "rotation"
    assert report.layers.residual_map == "rotation"
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    found = {m.test for m in report.modules if m.log10_p < -10}
    assert {"planes", "subspaces", "neurons"} <= found


def test_a_rotated_residual_stream_is_found_before_any_mlp_is_read(base, save, monkeypatch):
    read = []
    whole = RangedTensors.read
    monkeypatch.setattr(RangedTensors, "read", lambda self, name: read.append(name) or whole(self, name))
    hidden, _ = obfuscate(base, seed=3)
    report = compare(save(base, "base"), save(hidden, "hidden"))
    assert (report.settled_by, report.layers.role) == ("layers", "v")
    # Each model's analysed layers are read once. The second witness reads the candidate's once more, and one further
    # layer of each model, to compare strengths.
    counts = Counter(name for name in read if "up_proj" in name)
    analysed = {f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 2, 3)}
    assert analysed <= counts.keys() and max(counts.values()) <= 4


@pytest.mark.parametrize("level", ["auto", "layers"])
def test_layers_of_a_stranger_do_not_match(base, save, level):
    plans = []
    folders = save(base, "base"), save(new_model(seed=9, **SIZES), "stranger")
    report = compare(*folders, level=level, on_plan=plans.append)
    # The plan states the bound for values before the read. Keys have as many rows, and there are more neurons.
    assert 1.0 < plans[0].excluded_layers_noise <= report.excludes.layers_noise
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.layers.matches == ()
    assert report.layers.log10_p == 0.0
    assert report.modules is None


@torch.no_grad()
def with_layers(base, layers, seed=1):
    model = new_model(seed=seed, **{**SIZES, "num_hidden_layers": len(layers)})
    model.model.embed_tokens.load_state_dict(base.model.embed_tokens.state_dict())
    for here, there in enumerate(layers):
        model.model.layers[here].load_state_dict(base.model.layers[there].state_dict())
    return model


@pytest.mark.parametrize(("layers", "pattern"), [([0, 1, 2, 1, 2, 3], "repeated"), ([0, 3], "pruned")])
def test_depth_changes_are_read_off_the_layer_map(base, save, layers, pattern):
    folders = save(base, "base"), save(drift(with_layers(base, layers), 0.2), "deep")
    for level in ("layers", "full"):
        report = compare(*folders, level=level)
        assert [[*match[:2]] for match in report.layers.matches] == [[there, here] for here, there in enumerate(layers)]
        assert report.layers.pattern == pattern
    assert {tuple(m.layer) for m in report.modules} == {(there, here) for here, there in enumerate(layers)}


def test_the_layer_map_is_drawn(base, save):
    pytest.importorskip("matplotlib")
    report = compare(save(base, "base"), save(drift(with_layers(base, [0, 3]), 0.2), "x"), level="layers")
    assert "2 of 2 layers" in report.figures()["layers"].get_label()


@torch.no_grad()
def test_layers_of_strangers_with_heavy_tailed_row_norms_do_not_match(save):
    models = [new_model(seed=seed, **SIZES) for seed in (0, 9)]
    for seed, model in enumerate(models):
        generator = torch.Generator().manual_seed(seed)
        for layer in model.model.layers:
            for projection in (layer.self_attn.v_proj, layer.self_attn.k_proj, layer.mlp.up_proj, layer.mlp.gate_proj):
                lengths = torch.randn(len(projection.weight), 1, generator=generator, dtype=torch.float64)
                projection.weight *= (1.5 * lengths).exp()
    report = compare(save(models[0], "a"), save(models[1], "b"))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.layers.log10_p == 0.0


def test_wrong_heads_in_the_config_do_not_stop_the_analysis(base, save):
    folders = [save(base, "base"), save(drift(copy.deepcopy(base), 0.2), "x")]
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        config |= {"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": None}
        (folder / "config.json").write_text(json.dumps(config))
    report = compare(*folders, level="full")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert {m.role for m in report.modules} >= {"q", "k", "v", "o", "mlp"}


def test_unknown_heads_use_no_rotary_planes(base, save):
    folders = [save(base, "base"), save(drift(copy.deepcopy(base), 0.2), "x")]
    known = compare(*folders, level="full")
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        sizes = {key: config[key] for key in ("hidden_size", "vocab_size", "num_hidden_layers")}
        (folder / "config.json").write_text(json.dumps(sizes | {"model_type": "unheard_of"}))
    report = compare(*folders, level="full")
    assert report.verdict is Verdict.HOMOLOGOUS
    of_planes = {"planes", "frequencies"}
    assert {m.test for m in known.modules} & of_planes
    assert not {m.test for m in report.modules} & of_planes
    assert {m.role for m in report.modules} >= {"q", "k", "v", "o", "mlp"}


@torch.no_grad()
def pruned_rows(model, share):
    """Keep only the largest entries of every row in every layer's matrices."""
    for weight in model.model.layers.parameters():
        if weight.ndim == 2:
            n_kept = max(1, round(share * weight.shape[1]))
            least = weight.abs().topk(n_kept, dim=1).values[:, -1:]
            weight *= weight.abs() >= least
    return model


@pytest.mark.parametrize(("n_layers", "share"), [(1, 0.05), (4, 0.15)])
def test_strangers_with_a_few_large_entries_are_not_homologous(save, share, n_layers):
    models = [pruned_rows(new_model(seed=seed, **{**SIZES, "num_hidden_layers": n_layers}), share) for seed in (0, 9)]
    report = compare(save(models[0], "a"), save(models[1], "b"))
    assert report.verdict is not Verdict.HOMOLOGOUS


@torch.no_grad()
def test_strangers_with_cubed_weights_are_not_called_homologous(save):
    models = [new_model(seed=seed, **{**SIZES, "num_hidden_layers": 1}) for seed in (0, 9)]
    for model in models:
        for weight in model.model.layers.parameters():
            if weight.ndim == 2:
                weight.copy_(weight**3 / weight.std() ** 2)
    report = compare(save(models[0], "a"), save(models[1], "b"))
    assert report.verdict is not Verdict.HOMOLOGOUS


def test_the_layers_are_one_more_look_with_its_share_of_alpha(base, save, monkeypatch):
    asked = []

    def compare_and_note(question, tried):
        layers = compare_layers(question, tried)
        asked.append((question.log_alpha, layers.log_p, log_p_of_all_layers(layers.layer_map)))
        return layers

    monkeypatch.setattr(layer_maps, "compare_layers", compare_and_note)
    candidate = save(drift(new_embeddings(copy.deepcopy(base)), 0.3), "retrained")
    report = compare(save(base, "base"), candidate)
    ((log_alpha, log_p, log_p_together),) = asked
    # Look s of growing data costs s (s + 1); the looks at the matrices came first.
    place = max(len(matrix.looks) for matrix in (report.embedding, report.unembedding)) + 1
    cost = math.log(place * (place + 1))
    assert log_alpha == pytest.approx(math.log(1e-10) - cost)
    assert report.layers.log10_p == pytest.approx((log_p + cost) / math.log(10.0))
    assert report.layers.log10_p_fisher == pytest.approx((log_p_together + cost) / math.log(10.0))
    assert report.log10_p is None or report.log10_p == pytest.approx(report.layers.log10_p_fisher, abs=1.0)


def test_all_mlps_of_one_stranger_and_some_rows_of_the_other_are_read(save, monkeypatch):
    monkeypatch.setattr(LocalFile, "gap_bytes", 0)  # at real widths such rows lie megabytes apart
    sizes = SIZES | {"intermediate_size": 1024}
    folders = [save(new_model(seed=seed, **sizes), f"wide{seed}") for seed in (0, 1)]
    ledger = IoLedger()
    reference = Model(open_repository(folders[0], RepositoryOptions(use_caches=False), ledger=ledger))
    checker = HomologyChecker(reference, ledger=ledger, settings=Settings(), reading=Reading(use_caches=False))
    report = checker.compare(folders[1], progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE
    mine, other = (sum(n for name, n in ledger.files.items() if name.startswith(f"{f}:model")) for f in folders)
    mlps = SIZES["num_hidden_layers"] * sizes["intermediate_size"] * SIZES["hidden_size"] * 4
    # Two maps, with the residual basis unchanged and rotated, read 64 of 1024 rows of each layer: an eighth of the
    # MLPs. The embeddings, and the keys and values for each map, come on top. The candidate's MLPs are read once for
    # both maps.
    assert mine < mlps / 3
    assert mlps < other < mlps + mine


# Wide matrices and deep models: some rows and some layers are enough.


def up_rows(read):
    return [(name, n_rows) for name, n_rows in read if "up_proj" in name]


@pytest.fixture
def rows_read(monkeypatch):
    """Names of tensors, with the number of rows read from each (None for all)."""
    read = []
    whole, some = RangedTensors.read, RangedTensors.read_rows

    def read_rows(self, name, rows, **options):
        read.append((name, len(rows)))
        return some(self, name, rows, **options)

    monkeypatch.setattr(RangedTensors, "read", lambda self, name: read.append((name, None)) or whole(self, name))
    monkeypatch.setattr(RangedTensors, "read_rows", read_rows)
    return read


@pytest.fixture
def wide(monkeypatch):
    """Screen every matrix of more than 100 rows by a sample of its rows."""
    from mdir_hf.comparison import row_screen
    from mdir_hf.method import screening as samples

    monkeypatch.setattr(row_screen, "MANY_CHANNELS", 100)
    monkeypatch.setattr(samples, "FEWEST_ROWS", 16)


def test_wide_mlps_of_strangers_are_sampled(save, rows_read):
    noise = {}
    for n_neurons in (1024, 1040):
        sizes = SIZES | {"intermediate_size": n_neurons}
        folders = [save(new_model(seed=seed, **sizes), f"{n_neurons}-{seed}") for seed in (0, 1)]
        rows_read.clear()
        noise[n_neurons] = compare(*folders).excludes.layers_noise
        assert any(n_rows is None for _, n_rows in up_rows(rows_read)) is (n_neurons == 1024)
    assert noise[1040] == noise[1024]  # the bound of the values, which are read whole in both


@torch.no_grad()
def without_attention_of(base, seed=77):
    """A model's MLPs, with their neurons shuffled, in a model with unrelated attention and embeddings."""
    model = new_model(seed=seed, **SIZES)
    generator = torch.Generator().manual_seed(seed)
    for mine, other in zip(model.model.layers, base.model.layers, strict=True):
        order = torch.randperm(SIZES["intermediate_size"], generator=generator)
        mine.post_attention_layernorm.load_state_dict(other.post_attention_layernorm.state_dict())
        mine.mlp.gate_proj.weight.copy_(other.mlp.gate_proj.weight[order])
        mine.mlp.up_proj.weight.copy_(other.mlp.up_proj.weight[order])
        mine.mlp.down_proj.weight.copy_(other.mlp.down_proj.weight[:, order])
    return model


def test_a_wide_matrix_is_read_whole_if_sampled_rows_match(base, save, wide, rows_read):
    report = compare(save(base, "base"), save(without_attention_of(base), "mlps"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert (report.layers.role, report.layers.residual_map) == ("up", "identity")
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    assert next(n for _, n in up_rows(rows_read)) is not None  # first a few rows, then the whole matrix
    assert None in [n for _, n in up_rows(rows_read)]


@pytest.fixture
def few_layers(monkeypatch):
    from mdir_hf.comparison import row_screen

    monkeypatch.setattr(row_screen, "SPREAD_LAYERS", 2)


def test_some_layers_of_strangers_are_compared(base, save, few_layers):
    report = compare(save(base, "base"), save(new_model(seed=9, **SIZES), "stranger"))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert (report.layers.reference_layers, report.layers.candidate_layers) == ((0, 1, 2, 3), (0, 3))
    assert report.layers.pattern == "sampled"
    assert "0 of 2 layers" in " ".join(str(report).split())
    (caveat,) = [caveat for caveat in report.caveats if "layers of the" in caveat]
    assert caveat.startswith(
        "Only 2 of the 4 layers of the candidate model were compared with all layers of the other. "
    )


def test_all_layers_of_relatives_are_mapped(base, save, few_layers):
    hidden, _ = obfuscate(base, seed=3)
    report = compare(save(base, "base"), save(hidden, "hidden"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    assert report.layers.pattern == "identity"


def test_a_map_that_is_too_large_is_limited_to_the_compared_layers(base, save, few_layers, monkeypatch):
    from mdir_hf.comparison import layers

    monkeypatch.setattr(layers, "WHOLE_MAP_BYTES", 0)
    hidden, _ = obfuscate(base, seed=3)
    report = compare(save(base, "base"), save(hidden, "hidden"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert [[*match[:2]] for match in report.layers.matches] == [[0, 0], [3, 3]]
    assert report.layers.pattern == "sampled"


@pytest.mark.parametrize("is_turned_round", [False, True])
def test_layers_of_the_shallower_model_are_chosen_whichever_it_is(base, save, few_layers, is_turned_round):
    deep = save(with_layers(base, [0, 1, 2, 1, 2, 3]), "deep")
    folders = (deep, save(new_model(seed=9, **SIZES), "stranger"))
    layers = compare(*(folders[::-1] if is_turned_round else folders)).layers
    chosen = (layers.reference_layers, layers.candidate_layers)
    assert chosen == (((0, 3), tuple(range(6))) if is_turned_round else (tuple(range(6)), (0, 3)))


@pytest.mark.parametrize("make", [new_model, new_gpt2])
def test_no_row_of_a_small_model_is_read_twice(make, save, monkeypatch):
    """Rows stay in memory for all looks and maps, even if three roles are columns of one matrix."""
    n_reads: Counter[tuple[int, str, int]] = Counter()

    def read(self, name, original=RangedTensors.read):
        n_reads.update((id(self), name, row) for row in range(self.spec(name).shape[0]))
        return original(self, name)

    def read_rows(self, name, rows, original=RangedTensors.read_rows, **options):
        n_reads.update((id(self), name, int(row)) for row in rows)
        return original(self, name, rows, **options)

    monkeypatch.setattr(RangedTensors, "read", read)
    monkeypatch.setattr(RangedTensors, "read_rows", read_rows)
    compare(save(make(seed=0, **SIZES), "base"), save(make(seed=9, **SIZES), "stranger"))
    assert n_reads
    assert not {name for (_, name, _), n in n_reads.items() if n > 1}


def test_a_hidden_copy_whose_neurons_all_agree_needs_no_tests_of_whole_layers(base, save, monkeypatch):
    fitted = []
    on_layers = residual_maps.fitted_on_layers
    monkeypatch.setattr(
        residual_maps, "fitted_on_layers", lambda *keys, **how: fitted.append(keys) or on_layers(*keys, **how)
    )
    hidden, _ = obfuscate(base, seed=3)
    report = compare(save(base, "base"), save(hidden, "hidden"), level="layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.layers.residual_map == "rotation" and report.layers.is_supported
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    # The rotation of the embeddings was enough to find the neurons of all layers.
    assert report.modules is None and not fitted
    assert {result.outcome.value for result in report.projections.results if result.role == "gate"} == {"permuted"}


def test_named_layers_of_a_hidden_copy_are_tested_whole(base, save):
    hidden, _ = obfuscate(base, seed=3)
    report = compare(save(base, "base"), save(hidden, "hidden"), level="layers", layers=[2])
    assert {module.layer for module in report.modules} == {(2, 2)}
