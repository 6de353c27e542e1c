"""What a run of a suite says: LeaFBench's metrics, decisions at alpha, and what could not be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.leafbench.suites import Suite
from benchmarks.metrics import decisions, leafbench_metrics, mahalanobis_ceiling, score_of_log10_p
from mdir_hf.lineage.survey.results import RESULTS, PairResult, read_survey

PUBLISHED = {
    "leafbench": {  # ACC, AUC, pAUC, MD, TPR@1%FPR of the paper's table
        "Gradient": (0.812, 0.798, 0.708, 0.672, 0.374),
        "REEF": (0.892, 0.896, 0.832, 2.091, 0.634),
        "HuRef": (0.992, 0.994, 0.971, 3.154, 0.943),
        "PDF": (0.996, 0.995, 0.996, 1.741, 0.992),
        "MDIR (paper)": (1.0, 1.0, 1.0, 2.834, 1.0),
    },
}


def report_suite(suite: Suite, folders: Sequence[Path]) -> dict[str, Any]:
    """Judge what was run.

    Args:
        suite: The suite.
        folders: Of its shards.

    Returns:
        Plain containers: settings, counts, ``decisions`` at the level of the run, ``metrics`` (None unless pairs of
        both kinds were compared), ``by_relation``, ``against_label`` and ``not_compared``.
    """
    survey = read_survey([folder / RESULTS for folder in folders])
    done = [(pair, survey.pairs.get((pair.reference, pair.candidate))) for pair in suite.pairs]
    judged = [(pair, found) for pair, found in done if found is not None and found.log10_p is not None]
    clear = [(pair, found) for pair, found in judged if pair.related is not None]
    truth = [bool(pair.related) for pair, _ in clear]
    counted = decisions((_accepts(found) for _, found in clear), truth)
    metrics = None
    if len(set(truth)) == 2:
        metrics = asdict(leafbench_metrics([score_of_log10_p(found.log10_p or 0.0) for _, found in clear], truth))
        metrics["mahalanobis_ceiling"] = mahalanobis_ceiling(sum(truth), len(truth) - sum(truth))
    relations: dict[str, list[int]] = {}
    for pair, found in judged:
        label = {True: pair.relation, False: "none", None: "unclear"}[pair.related]
        counts = relations.setdefault(label, [0, 0])
        counts[0] += 1
        counts[1] += _accepts(found)
    return {
        "suite": suite.name,
        "source": suite.source,
        "settings": {key: value for key, value in survey.settings.items() if key != "names"},
        "n_pairs": len(suite.pairs),
        "n_compared": len(judged),
        "n_not_run": sum(found is None for _, found in done),
        "decisions": asdict(counted),
        "metrics": metrics,
        "by_relation": {name: {"pairs": n, "homologous": k} for name, (n, k) in sorted(relations.items())},
        "against_label": [
            [pair.reference, pair.candidate, pair.relation, bool(pair.related), found.verdict, found.log10_p]
            for pair, found in clear
            if _accepts(found) != pair.related
        ],
        "not_compared": [
            [pair.reference, pair.candidate, found.error or "no p"]
            for pair, found in done
            if found is not None and found.log10_p is None
        ],
    }


def report_markdown(report: dict[str, Any]) -> str:
    """The report as a section of a page."""
    counts, metrics = report["decisions"], report["metrics"]
    lines = [
        f"## {report['suite']}",
        "",
        f"{report['n_compared']} of {report['n_pairs']} pairs compared at level {report['settings'].get('level')}, "
        f"alpha = {report['settings'].get('alpha'):g} each; {len(report['not_compared'])} could not be, "
        f"{report['n_not_run']} were not run. Labels: {report['source']}.",
        "",
        f"Decisions: {counts['true_positives']} related pairs found, {counts['false_negatives']} missed; "
        f"{counts['false_positives']} others called related, {counts['true_negatives']} not.",
        "",
    ]
    if metrics is not None:
        lines += ["| method | ACC | AUC | pAUC | MD | TPR@1%FPR |", "|---|---|---|---|---|---|"]
        names = ("accuracy", "auc", "partial_auc", "mahalanobis", "tpr_at_1_percent_fpr")
        rows = {"mdir-hf": tuple(metrics[name] for name in names), **PUBLISHED.get(report["suite"], {})}
        lines += [f"| {name} | " + " | ".join(f"{value:.3f}" for value in row) + " |" for name, row in rows.items()]
        lines += ["", f"No method's MD can pass {metrics['mahalanobis_ceiling']:.3f} here.", ""]
    lines += ["| relation | pairs | homologous |", "|---|---|---|"]
    lines += [f"| {name} | {found['pairs']} | {found['homologous']} |" for name, found in report["by_relation"].items()]
    if report["against_label"]:
        lines += ["", "| against its label | and | said to be | verdict | log10 p |", "|---|---|---|---|---|"]
        lines += [
            f"| {a} | {b} | {how} | {verdict} | {p:.1f} |" for a, b, how, _, verdict, p in report["against_label"]
        ]
    if report["not_compared"]:
        lines += ["", "Not compared:", "", *(f"- {a}, {b}: {why}" for a, b, why in report["not_compared"])]
    return "\n".join(lines) + "\n"


def _accepts(found: PairResult) -> bool:
    return found.verdict == "homologous"
