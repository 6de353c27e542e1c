"""Run benchmarks: ``python -m benchmarks NAME... [--only WORD] [--again]``; no name lists them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from transformers.utils import logging

from benchmarks import (
    cost_growth,
    coverage,
    moment_bound,
    neuron_null,
    oracles,
    power,
    reliability,
    space_visitors,
    survey_scale,
)
from benchmarks.evidence.page import write_evidence
from benchmarks.paper import ablation, changed_tokenizer, layer_maps, matrices, noise_real, printed_matrix
from benchmarks.real import alignment, forgery, judging, methods, peers, plain
from benchmarks.real.framing import judge
from benchmarks.runner import Benchmark, read_lines, run
from benchmarks.zoo import run as zoo

BENCHMARKS: tuple[Benchmark, ...] = (
    *(zoo.ZOO_MODELS, zoo.ZOO_PAIRS, zoo.ZOO_PEERS),
    *(judging.REAL_MODELS, judging.REAL_PAIRS, peers.REAL_PEERS),
    *(methods.REAL_METHODS, forgery.REAL_FORGERY, judge.FRAMING, plain.PLAIN_MDIR, alignment.ALIGNMENT),
    *(neuron_null.NEURON_NULL, cost_growth.COST_GROWTH, reliability.RELIABILITY, power.POWER),
    *(survey_scale.SURVEY_SCALE, survey_scale.SURVEY_DISGUISES, space_visitors.SPACE_VISITORS),
    *(noise_real.NOISE_REAL, changed_tokenizer.CHANGED_TOKENIZER, ablation.ABLATION, layer_maps.LAYER_MAPS),
    *(printed_matrix.PRINTED_MATRIX, matrices.MATRICES),
)

COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], None]]] = {
    "coverage": ("roles of every causal model of transformers; writes its page", coverage.cover_all),
    "evidence": ("docs/evidence.md and its pages, from the results", lambda _: write_evidence()),
    "moment-bound": ("the moment inequality behind p, in exact fractions", lambda _: moment_bound.print_counts()),
    "oracles": ("the section on oracles of the page on coverage", lambda _: oracles.write_section()),
}
"""Commands that print, or write a page, and store no lines."""


def main() -> None:
    """List the benchmarks, or run some of them in the given order."""
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="only cases with this word")
    parser.add_argument("--again", action="store_true", help="also measure cases that have a line")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - known.keys() - COMMANDS.keys()):
        parser.error(f"no benchmark is called {', '.join(unknown)}")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in options.names:
        if name in COMMANDS:
            COMMANDS[name][1](options.only)
        else:
            run(known[name], options.only, again=options.again)
    if not options.names:
        for benchmark in BENCHMARKS:
            print(f"{benchmark.name:25} {len(read_lines(benchmark.path)):6,} lines  {benchmark.about}")
        for name, (about, _) in COMMANDS.items():
            print(f"{name:39} {about}")


if __name__ == "__main__":
    main()
