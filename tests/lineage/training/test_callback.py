"""Watching a model during training, by hand and by a Trainer, up to the pushed card."""

import copy
import json
import math
import warnings

import pytest
import torch

from mdir_hf import HomologyReport, LineageCallback, watch
from mdir_hf.errors import InputError
from tests.model.memory.test_models_in_memory import build, drifted

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def quiet():
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about generation settings of a hand-made config
        yield


class TestDrift:
    @pytest.mark.parametrize("family", ["llama", "gpt2", "phi3"])
    def test_noise_of_a_known_size_is_measured_part_by_part(self, family):
        model = build(family)
        run = watch(model)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight += 0.1 * weight.square().mean().sqrt() * torch.randn_like(weight)
        drift = run.measure(3)
        assert drift.step == 3
        assert {part.layer for part in drift.parts} == {None, 0, 1}
        for part in drift.parts:
            assert part.relative == pytest.approx(0.1, rel=0.15)  # a sample of at least 1,500 entries
            assert 0.85 < part.trace_over_rank < 1  # 48 columns are few for 16 channels

    @pytest.mark.parametrize("times", [1e30, 1e-30])
    def test_numbers_of_any_size_are_measured(self, times):
        model = build()
        with torch.no_grad():
            for weight in model.parameters():
                weight *= times
        run = watch(model)
        with torch.no_grad():
            for weight in model.parameters():
                weight *= 1.1
        drift = run.measure()
        assert drift.relative == pytest.approx(0.1, rel=1e-3)
        assert drift.trace_over_rank == pytest.approx(1, abs=1e-4)
        assert all(map(math.isfinite, drift.values().values()))

    def test_drift_is_measured_from_a_named_base(self, tmp_path):
        base = build("gpt2")
        base.save_pretrained(tmp_path)
        run = watch(drifted(base, 0.05), base=tmp_path)
        assert run.measure().relative == pytest.approx(0.05, rel=0.2)
        assert run.report().verdict == "homologous"

    def test_the_old_rows_of_a_resized_vocabulary_are_watched(self):
        base = build()
        model = copy.deepcopy(base)
        model.resize_token_embeddings(500)
        drift = watch(model, base=base).measure()
        assert drift.by_role()["embedding"].d2 == 0

    def test_an_adapter_in_training_moves_only_its_targets(self):
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(build(), peft.LoraConfig(r=2, target_modules=["v_proj"]))
        with watch(model) as run, torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.fill_(0.1)
        assert {part.role for part in run.drifts[-1].parts if part.d2} == {"v"}

    def test_values_have_names_for_trackers(self):
        values = watch(build()).measure().values()
        assert {"lineage/d2", "lineage/role/q/trace_over_rank", "lineage/layer/01/d2"} <= values.keys()
        assert not any("layer/" in name for name in watch(build()).measure().values(layers=False))

    def test_a_model_without_a_named_base_raises(self):
        with pytest.raises(InputError, match="name its base"):
            watch(build()).report()


def trainer_of(model, folder, **more):
    rows = [{"input_ids": torch.arange(i, i + 6), "labels": torch.arange(i, i + 6)} for i in range(8)]
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=6, per_device_train_batch_size=2, learning_rate=3e-3, report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=True, **{"logging_steps": 2} | more,
    )  # fmt: skip
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    build().save_pretrained(folder / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    trainer = trainer_of(model, str(folder / "out"))
    callback = LineageCallback(trainer, every=2)
    trainer.add_callback(callback)
    seen = []

    class Reporter(transformers.TrainerCallback):
        """A callback that collects the logs, in place of Weights & Biases."""

        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append(logs)

    trainer.add_callback(Reporter())
    trainer.train()
    return trainer, callback, seen, folder


def test_a_trainer_logs_drift_beside_the_loss_and_ends_in_a_report(trained):
    trainer, callback, seen, place = trained
    steps = [entry["step"] for entry in trainer.state.log_history if "lineage/d2" in entry]
    assert steps == [2, 4, 6]
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [2, 4, 6]
    assert sum("lineage/role/q/trace_over_rank" in logs for logs in seen) == 3
    moved = [entry["lineage/relative"] for entry in trainer.state.log_history if "lineage/d2" in entry]
    assert 0 < moved[0] < moved[1] < moved[2]
    folder = place / "out" / "lineage"
    assert HomologyReport.from_json((folder / "report.json").read_text()) == callback.report
    assert callback.report.verdict == "homologous"
    assert callback.report.reference.repo == str(place / "base")
    history = json.loads((folder / "drift.json").read_text())
    assert [drift["step"] for drift in history["drifts"]] == [2, 4, 6]


def test_the_card_that_is_pushed_has_the_section_once(trained):
    trainer, callback, _, place = trained
    for _ in range(2):  # each push rewrites the card
        trainer.create_model_card(model_name="mine")
    card = (place / "out" / "README.md").read_text()
    assert card.count("## Weight ancestry") == 1
    assert "generated_from_trainer" in card
    assert "| q |" in card
    assert str(place) not in card.split("## Weight ancestry")[1]
    assert (place / "out" / ".lineage" / "badge.svg").read_text().startswith("<svg")
    assert (place / "out" / ".lineage" / "report.json").read_text() == callback.report.to_json() + "\n"


def test_an_unavailable_base_is_a_warning(tmp_path):
    model = build()
    model.name_or_path = str(tmp_path / "gone")
    trainer = trainer_of(model, str(tmp_path / "out"))
    callback = LineageCallback(trainer)
    trainer.add_callback(callback)
    with pytest.warns(UserWarning, match="no lineage report"):
        trainer.train()
    assert callback.report is None
    assert (tmp_path / "out" / "lineage" / "drift.json").exists()


def test_training_that_diverges_is_a_warning_and_goes_on(tmp_path):
    model = build()
    trainer = trainer_of(model, str(tmp_path / "out"))
    callback = LineageCallback(trainer, every=2)
    trainer.add_callback(callback)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(float("nan"))
    trainer.state.global_step = 2
    with pytest.warns(UserWarning, match=r"step 2: .* holds NaN or infinity"):
        callback.on_step_end(trainer.args, trainer.state, trainer.control)
    assert callback.watch.drifts == []


def test_an_interval_of_zero_steps_is_refused():
    with pytest.raises(InputError, match="every=0"):
        LineageCallback(None, every=0)
