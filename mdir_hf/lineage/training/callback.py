"""``LineageCallback``: logs in a Trainer how far the model has moved from its base, and ends with a report."""

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
from mdir_hf.lineage.training.card import add_to_card
from mdir_hf.lineage.training.watching import ModelWatch
from mdir_hf.render.folder import save_report, write_file
from mdir_hf.report import HomologyReport

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer, TrainerControl, TrainerState, TrainingArguments

FOLDER = "lineage"
"""In the output folder of the Trainer: drift.json and the report."""


class LineageCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]  # of transformers, which is not typed here
    """Logs how far a model has moved from its base, through ``trainer.log``: to whatever the Trainer reports to.

    At the end of training the model is compared with its base. The report and the drift of every measurement are
    written to ``lineage/`` in the output folder. The model card that ``push_to_hub`` writes gets a section and a badge.
    A missing base, or weights that became NaN, give a warning; the run goes on.

    Examples:
        >>> trainer = Trainer(model=model, args=arguments, train_dataset=data)
        >>> trainer.add_callback(LineageCallback(trainer))
        >>> _ = trainer.train()
        {...

    TRL's trainers are Trainers, too.

    Args:
        trainer: The Trainer, whose ``log`` is called and whose model card gets the section.
        base: What the model is measured from and compared with: a name, a folder or a model. By default it is measured
            from the weights at the beginning of training, and compared with what it was loaded from.
        every: Steps from one measurement to the next.
        layers: Whether each layer has values of its own, besides each role.

    Attributes:
        watch: What measures; None before training begins.
        report: The comparison with the base; None before training ends, or where the base could not be read.

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
        """Take the sample of weights that later ones are compared with."""
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
        """Measure and log, every so many steps."""
        if state.global_step % self._every == 0:
            self._measure(state, control)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Measure once more, compare with the base, and write what was found."""
        watch = self.watch
        if watch is None:
            return
        if not watch.drifts or watch.drifts[-1].step != state.global_step:
            self._measure(state, control)
        if watch.base is not None:
            try:
                self.report = watch.report()  # in shards, every rank takes part
            except MdirError as exc:
                warnings.warn(f"no lineage report: {exc}", stacklevel=2)
        if state.is_world_process_zero:
            self._write(Path(args.output_dir or "."), watch)

    def _measure(self, state: TrainerState, control: TrainerControl) -> None:
        assert self.watch is not None
        try:
            drift = self.watch.measure(state.global_step)
        except MdirError as exc:
            warnings.warn(f"step {state.global_step}: how far the model has moved cannot be told: {exc}", stacklevel=2)
            return
        logs_loss = control.should_log  # every log takes the mark away, and the Trainer's own is still to come
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
        """The Trainer's own way to write a card, and then our section: the card is written anew for every push."""
        write_card = getattr(write_card, "__wrapped__", write_card)

        @wraps(write_card)
        def write(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            made = write_card(*args, **kwargs)
            if self.report is not None and self.watch is not None and self._trainer.is_world_process_zero():
                try:
                    add_to_card(output, self.report, self.watch.drifts[-1])
                except MdirError as exc:
                    warnings.warn(f"no lineage section in the model card: {exc}", stacklevel=2)
            return made

        return write


def _name(base: object) -> str | None:
    return None if base is None else os.fspath(base) if isinstance(base, str | os.PathLike) else type(base).__name__
