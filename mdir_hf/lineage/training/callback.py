"""``LineageCallback``: log a model's drift in a Trainer, and write a report at the end."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from mdir_hf.errors import InputError, MdirError
from mdir_hf.lineage.cards.badge import make_badge
from mdir_hf.lineage.cards.card import with_section
from mdir_hf.lineage.cards.declared import README
from mdir_hf.lineage.cards.front_matter import parse_card
from mdir_hf.lineage.cards.section import BADGE_PATH, BEGIN, END, REPORT_PATH
from mdir_hf.lineage.training.drift import Drift
from mdir_hf.lineage.training.watching import ModelWatch
from mdir_hf.render.folder import save_report
from mdir_hf.render.text import plain
from mdir_hf.report import HomologyReport, ModelSummary
from mdir_hf.writing import write_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer, TrainerControl, TrainerState, TrainingArguments


def add_to_card(folder: Path, report: HomologyReport, drift: Drift) -> tuple[Path, ...]:
    """Add or replace the lineage section of the model card in a folder, and write the report and badge.

    The report must compare the base with the trained model. Returns the paths of the written files.

    Raises:
        CardError: If the card cannot be read or changed safely.
    """
    path = folder / README
    badge = make_badge(report)
    before = path.read_bytes() if path.exists() else b""
    card = with_section(parse_card(before, subject=str(path)), _section(report, drift), str(path))
    (folder / REPORT_PATH).parent.mkdir(parents=True, exist_ok=True)
    contents = {REPORT_PATH: report.to_json() + "\n", BADGE_PATH: badge.svg}
    written_paths = [write_file(folder / name, text.encode()) for name, text in contents.items()]
    return (*written_paths, write_file(path, card.to_bytes()))


def _section(report: HomologyReport, drift: Drift) -> str:
    badge = make_badge(report)
    moved = (
        f"| {role} | {role_drift.relative:.2%} | {role_drift.trace_over_rank:.4f} |"
        for role, role_drift in drift.by_role().items()
    )
    lines = [
        BEGIN,
        "<!-- Written by `LineageCallback` of mdir-hf, which replaces everything up to the end marker. -->",
        "## Weight ancestry",
        "",
        badge.markdown(BADGE_PATH, REPORT_PATH),
        "",
        f"**{badge.claim.sentence.replace('<', '&lt;')}**. "
        f"Compared at the end of training, in memory, with {_base(report.reference)}.",
        "",
        f"| after {drift.step:,} steps | moved, of the size of the base | trace over rank |",
        "|---|---|---|",
        *moved,
        "",
        f"Trace over rank is 1 if every channel still matches its own in the base. {badge.claim.what_p_says}",
        "",
        f"Measured by mdir-hf {plain(report.version)}, seed {report.seed}.",
        END,
    ]
    return "\n".join(lines) + "\n"


def _base(model: ModelSummary) -> str:
    if model.commit is None:
        return "its base, a folder or a model in memory"
    return f"{plain(model.repo)} at commit `{model.commit[:12]}`"


FOLDER = "lineage"
"""Folder in the Trainer's output folder for drift.json and the report."""


class LineageCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]  # transformers is not typed here
    """Logs how far a model has moved from its base, using ``trainer.log``.

    When training ends, compares the model with its base, writes the report and measurements to ``lineage/`` in the
    output folder, and adds a section and a badge to the model card. A missing base or NaN weights only cause a warning.

    Examples:
        >>> trainer = Trainer(model=model, args=arguments, train_dataset=data)
        >>> trainer.add_callback(LineageCallback(trainer))
        >>> _ = trainer.train()
        {...

    Args:
        trainer: The Trainer, which logs the values and writes the model card.
        base: Model, folder or name to compare with. By default, drift is measured from the initial weights, and the
            report compares with the model that was loaded.
        every: Number of steps between measurements.
        layers: Whether to log values per layer in addition to values per role.

    Attributes:
        watch: Watch that takes the measurements; None before training.
        report: Comparison with the base; None before training ends, or if the base is unreadable.

    Raises:
        InputError: If ``every`` is not a positive number.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        base: str | os.PathLike[str] | PreTrainedModel | None = None,
        every: int = 50,
        layers: bool = True,
    ) -> None:
        if every < 1:
            raise InputError(f"every={every} steps; expected 1 or more")
        self._trainer = trainer
        self._base = base
        self._every = every
        self._layers = layers
        self.watch: ModelWatch | None = None
        self.report: HomologyReport | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Sample the weights with which later weights are compared."""
        tokenizer = kwargs.get("processing_class")
        self.watch = ModelWatch(kwargs["model"], base=self._base, tokenizer=tokenizer)
        self.report = None

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Measure and log every ``every`` steps."""
        if state.global_step % self._every == 0:
            self._measure(state, control)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Measure once more, compare with the base, and write the results."""
        watch = self.watch
        if watch is None:
            return
        if not watch.drifts or watch.drifts[-1].step != state.global_step:
            self._measure(state, control)
        if watch.base is not None:
            try:
                self.report = watch.report()  # with sharding, every rank takes part
            except MdirError as exc:
                warnings.warn(f"no lineage report: {exc}", stacklevel=2)
        if state.is_world_process_zero:
            self._write(Path(args.output_dir or "."), watch)

    def _measure(self, state: TrainerState, control: TrainerControl) -> None:
        assert self.watch is not None
        try:
            drift = self.watch.measure(state.global_step)
        except MdirError as exc:
            warnings.warn(f"step {state.global_step}: the drift of the model cannot be measured: {exc}", stacklevel=2)
            return
        logs_loss = control.should_log  # every log call clears the flag, but the Trainer's own log is still to come
        self._trainer.log(drift.values(layers=self._layers))
        control.should_log = logs_loss

    def _write(self, output: Path, watch: ModelWatch) -> None:
        folder = output / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        history = {"schema": "mdir-hf/drift/1", "base": _name(watch.base), "drifts": [asdict(d) for d in watch.drifts]}
        write_file(folder / "drift.json", (json.dumps(history, indent=1) + "\n").encode())
        if self.report is None:
            return
        save_report(self.report, folder)
        self._trainer.create_model_card = self._with_section(self._trainer.create_model_card, output)

    def _with_section(self, write_card: Callable[..., Any], output: Path) -> Callable[..., Any]:
        write_card = getattr(write_card, "__wrapped__", write_card)

        @wraps(write_card)
        def write(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            result = write_card(*args, **kwargs)
            if self.report is not None and self.watch is not None and self._trainer.is_world_process_zero():
                try:
                    add_to_card(output, self.report, self.watch.drifts[-1])
                except MdirError as exc:
                    warnings.warn(f"no lineage section in the model card: {exc}", stacklevel=2)
            return result

        return write


def _name(base: object) -> str | None:
    return None if base is None else os.fspath(base) if isinstance(base, str | os.PathLike) else type(base).__name__
