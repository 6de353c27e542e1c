"""Check that `LineageCallback` takes under 1 % of the training time at its default settings.

The script trains a random model of the shape of SmolLM2-135M-Instruct with ``Trainer`` and times, in one run, every
step and every measurement of the callback; it prints the cost of a measurement in steps, and the share of the time at
one in fifty. Short steps are the hard case: a step here has 256 tokens. It takes about two minutes on one core.

    python -m benchmarks.callback_overhead [--steps 12] [--layers 30]
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import tempfile
import time
from typing import Any

import torch
import transformers

from mdir_hf import LineageCallback

MEASURE_EVERY = 2
GOAL = 0.01


class Clock(transformers.TrainerCallback):
    """Record the seconds of each step, without the time of callbacks between steps."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start."""
        self._started = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop."""
        self.seconds.append(time.perf_counter() - self._started)


class TimedCallback(LineageCallback):
    """Record the seconds of each measurement, including logging."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seconds: list[float] = []

    def _measure(self, *args: Any) -> None:
        started = time.perf_counter()
        super()._measure(*args)
        self.seconds.append(time.perf_counter() - started)


def main() -> None:
    """Measure the callback and print its cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=30)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=options.layers,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=256,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    row = torch.randint(49152, (128,), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as output:
        arguments = transformers.TrainingArguments(
            output_dir=output, max_steps=options.steps, per_device_train_batch_size=2, report_to=[],
            save_strategy="no", disable_tqdm=True, use_cpu=True, logging_strategy="no",
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row}] * 64
        )
        clock, callback = Clock(), TimedCallback(trainer, every=MEASURE_EVERY)
        trainer.callback_handler.callbacks.insert(0, clock)  # it stops its clock before other callbacks start
        trainer.add_callback(callback)
        trainer.train()
    step, measurement = statistics.median(clock.seconds[1:]), statistics.median(callback.seconds)
    every = inspect.signature(LineageCallback).parameters["every"].default
    share = measurement / (every * step)
    print(
        f"a step {step * 1000:,.0f} ms, a measurement {measurement * 1000:,.0f} ms "
        f"(medians of {options.steps - 1} and {len(callback.seconds)})"
    )
    print(
        f"a measurement is {measurement / step:.3f} of a step; with one in {every} steps it takes {share:.3%} of the "
        f"time (goal: under {GOAL:.0%})"
    )


if __name__ == "__main__":
    main()
