"""Answers for programs and agents: short dictionaries that include sentences, and their JSON Schemas."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from mdir_hf import HomologyReport, ReadPlan
from mdir_hf.lineage.family import Family
from mdir_hf.lineage.survey.reads import SurveyReads
from mdir_space.html.family_card import bom_of_family
from mdir_space.html.plans import cost_of, in_sentences
from mdir_space.jobs.estimate import Pace
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.service import Answered, Plan
from mdir_space.jobs.survey import SurveyResult

WORDS = {
    "sentence": "The result, as a sentence to quote.",
    "strength": "A bound on p, or how much agrees.",
    "warning": "The most important limit of the sentence; empty if there is none.",
    "means": "The meaning of the verdict, in words to quote.",
    "cut_short": "The parts that were skipped because of a limit of this server; empty if there are none.",
    "link": "Page of this result, pinned to the two commits; empty if the result is private.",
}
"""Strings that are added to a report, with their descriptions."""


def answer_of(answered: Answered[HomologyReport], link: str, *, detailed: bool = False) -> dict[str, Any]:
    """Return an answer: the strings in :data:`WORDS`, ``does_not_mean``, and the fields of a report.

    If ``detailed``, the report is complete. Otherwise the answer takes a few kilobytes: lists for figures are empty,
    and only the strongest module of each role is included.
    """
    report = answered.result
    words = {
        "sentence": report.sentence,
        "strength": report.strength,
        "warning": report.warning or "",
        "means": report.means,
        "cut_short": answered.cut_short,
        "link": link,
    }
    body = json.loads(report.to_json())
    return {**words, "does_not_mean": list(report.does_not_mean), **(body if detailed else _slim(body))}


def _slim(body: dict[str, Any]) -> dict[str, Any]:
    if body["layers"] is not None:
        body["layers"]["matrix"] = []
    if body["modules"] is not None:
        strongest: dict[str, dict[str, Any]] = {}
        for module in body["modules"]:
            best = strongest.get(module["role"])
            if best is None or module["log10_p"] < best["log10_p"]:
                strongest[module["role"]] = module
        body["modules"] = list(strongest.values())
    body["io"]["files"] = []
    return body


@cache
def answer_schema() -> dict[str, Any]:
    """Return the JSON Schema of :func:`answer_of`, which extends the schema of a report."""
    report = json.loads((files("mdir_hf.report") / "report.schema.json").read_text(encoding="utf-8"))
    words: dict[str, Any] = {name: {"type": "string", "description": what} for name, what in WORDS.items()}
    words["does_not_mean"] = {
        "type": "array",
        "items": {"type": "string"},
        "description": "Conclusions that do not follow from it.",
    }
    schema = {
        "type": "object",
        "description": "A report of mdir-hf with its sentences. homologous: the weights share ancestry.",
        "additionalProperties": False,
        "$defs": report["$defs"],
        "properties": {**words, **report["properties"]},
        "required": [*words, *report["required"]],
    }
    return dict(_without_titles(schema))


_TEXT: dict[str, Any] = {"type": "string"}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_NUMBER_OR_NULL: dict[str, Any] = {"type": ["number", "null"]}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_COUNT_OR_NULL: dict[str, Any] = {"type": ["integer", "null"], "minimum": 0}
_SECONDS: dict[str, Any] = {"type": "number", "minimum": 0}
_VERDICT: dict[str, Any] = {"enum": ["homologous", "no_evidence", "inconclusive", None]}
_P_IS_BOUND = {
    "type": "boolean",
    "description": "Whether p bounds a probability. If not, log10_p is null, because partners were searched for.",
}


def object_of(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(properties),
    }


def listed(of: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": of}


def described(description: str, of: dict[str, Any] = _TEXT) -> dict[str, Any]:
    """Return a schema with a description added."""
    return {**of, "description": description}


_COMMON = {
    "says": described("The whole answer as lines of text."),
    "cut_short": described(WORDS["cut_short"]),
    "link": described("Page of this result, pinned to the commit of the model; empty if the result is not stored."),
}

IDENTIFIED = object_of(
    **_COMMON,
    model=described("The model, at the commit that was read."),
    found=described("Base models with which it shares weight ancestry, most likely first.", listed(_TEXT)),
    candidates=described(
        "Base models that the index proposed, with the results of their comparisons.",
        listed(
            object_of(
                base=_TEXT,
                verdict=_VERDICT,
                log10_p=described("Comparison only: null if there was none, or if it has no p.", _NUMBER_OR_NULL),
                p_is_bound=_P_IS_BOUND,
                sentence=described("Result of the comparison, to quote; null if there was none.", _TEXT_OR_NULL),
                error=_TEXT_OR_NULL,
            )
        ),
    ),
    bases=described("Number of base models in the index.", _COUNT),
    bases_of_width=described(
        "Number of bases that the model could copy plainly: equally wide, with enough common tokens.",
        _COUNT,
    ),
    excluded_noise=described(
        "A copy of any of those with noise of up to this many times the weights would have been found, unless its "
        "channels were rotated.",
        _NUMBER_OR_NULL,
    ),
    bytes_read=_COUNT,
)
"""Schema of :func:`identified`."""


def identified(answered: Answered[Family], link: str) -> dict[str, Any]:
    """Return the base models in the index that share ancestry with a model."""
    identification = answered.result.found
    assert identification is not None, "a search that fails is refused"
    return {
        "says": str(identification),
        "cut_short": answered.cut_short,
        "link": link,
        "model": identification.model.pinned,
        "found": [ancestor.base.repo for ancestor in identification.found],
        "candidates": [
            {
                "base": ancestor.base.pinned,
                "verdict": None if ancestor.verdict is None else str(ancestor.verdict),
                "log10_p": ancestor.log10_p,
                "p_is_bound": ancestor.p_is_bound,
                "sentence": None if ancestor.report is None else ancestor.report.sentence,
                "error": ancestor.error,
            }
            for ancestor in identification.ancestors
        ],
        "bases": identification.n_bases,
        "bases_of_width": identification.n_of_width,
        "excluded_noise": identification.excluded_noise,
        "bytes_read": identification.bytes_read,
    }


VERIFIED = object_of(
    **_COMMON,
    declares=described("Base models that the card declares.", listed(_TEXT)),
    relation=described("The declared relation: finetune, merge, quantized or adapter.", _TEXT_OR_NULL),
    bases=described(
        "Results of comparing the model with each of them.",
        listed(
            object_of(
                base=_TEXT,
                outcome=described("A verdict, or own_base, not_read or not_measured."),
                sentence=described("Result of the comparison, to quote; null if there was none.", _TEXT_OR_NULL),
                log10_p=_NUMBER_OR_NULL,
                p_is_bound=_P_IS_BOUND,
                why_not=_TEXT_OR_NULL,
            )
        ),
    ),
    cycle=described(
        "Models that declare each other in a cycle; null if there is none.",
        {"type": ["array", "null"], "items": {"type": "string"}},
    ),
    bom=described(
        "Bill of materials of the model, a CycloneDX 1.6 document: declared bases that the weights confirm are its "
        "ancestors. null if it could not be made.",
        {"type": ["object", "null"]},
    ),
)
"""Schema of :func:`verified`."""


def verified(answered: Answered[Family], link: str) -> dict[str, Any]:
    """Return the lineage that a model's card declares, with the measured outcome for each base."""
    check = answered.result.declared
    assert check is not None, "a check that fails is refused"
    return {
        "says": str(check),
        "cut_short": answered.cut_short,
        "link": link,
        "declares": list(check.declared.base_models),
        "relation": check.declared.relation,
        "bases": [
            {
                "base": base_check.base,
                "outcome": str(base_check.outcome),
                "sentence": None if base_check.report is None else base_check.report.sentence,
                "log10_p": None if base_check.report is None else base_check.report.log10_p,
                "p_is_bound": base_check.report is not None and base_check.report.p_is_bound,
                "why_not": base_check.why_not,
            }
            for base_check in check.bases
        ],
        "cycle": None if check.cycle is None else list(check.cycle),
        "bom": json.loads(bom) if (bom := bom_of_family(answered.result)) else None,
    }


SURVEYED = object_of(
    cut_short=described(WORDS["cut_short"]),
    link=described("Page of this survey, pinned to the commits of its models; empty if the result is not stored."),
    left_out=described("A sentence on the models of the list that are not in it; empty if all are."),
    groups=described(
        "Models that share ancestry, directly or through others; the rest stand alone.",
        listed(listed(_TEXT)),
    ),
    compared=described(
        "The parts that were compared: a few neurons of each pair, and pairs with similar attention heads in full; "
        "with layers, every other pair in full."
    ),
    models=described(
        "Every model, with the error if it was not read.", listed(object_of(name=_TEXT, error=_TEXT_OR_NULL))
    ),
    pairs=described(
        "Every pair that was compared.",
        listed(
            object_of(
                reference=_TEXT, candidate=_TEXT, verdict=_VERDICT, log10_p=_NUMBER_OR_NULL, p_is_bound=_P_IS_BOUND
            )
        ),
    ),
    trees=described(
        "The tree of each group, with branch lengths and supports in per cent; null for groups of two.",
        listed(object_of(members=listed(_TEXT), newick=_TEXT_OR_NULL)),
    ),
)
"""Schema of :func:`surveyed`."""


def surveyed(answered: Answered[SurveyResult], link: str) -> dict[str, Any]:
    """Return a survey for programs."""
    report = answered.result.report
    return {
        "cut_short": answered.cut_short,
        "link": link,
        "left_out": answered.result.left_out,
        "groups": [list(group) for group in report.groups()],
        "compared": report.compared,
        "models": [{"name": model.name, "error": model.error} for model in report.models.values()],
        "pairs": [
            {
                "reference": pair.reference,
                "candidate": pair.candidate,
                "verdict": None if pair.verdict is None else str(pair.verdict),
                "log10_p": pair.log10_p,
                "p_is_bound": pair.log10_p is not None,
            }
            for pair in report.pairs.values()
        ],
        "trees": [{"members": list(tree.members), "newick": tree.newick} for tree in answered.result.trees],
    }


PLANNED = object_of(
    kind=described("The kind of plan.", {"enum": ["comparison", "family", "survey"]}),
    bytes_at_least=described("Bytes if the first step settles the question: headers and a few neurons.", _COUNT),
    bytes_if_nothing_settles_it=described("Upper bound on the bytes if every step is needed.", _COUNT),
    bytes_limit=described("Most bytes that may be read here; null for no limit.", _COUNT_OR_NULL),
    bytes_of_weights=described("Stored size of both models; null except for a comparison.", _COUNT_OR_NULL),
    seconds_at_least=described("Estimated duration if the first step settles it.", _SECONDS),
    seconds_if_nothing_settles_it=described("Estimated duration if every step is needed.", _SECONDS),
    requests=described("Most requests to the Hub; null for a comparison.", _COUNT_OR_NULL),
    peak_memory_bytes=described("Estimated memory; null if not planned.", _COUNT_OR_NULL),
    steps=described(
        "Steps of a comparison with the most bytes that each may read; each runs only if the question is still open. "
        "Empty except for a comparison.",
        listed(object_of(step=_TEXT, bytes=_COUNT)),
    ),
    models=described(
        "For a survey: the rows and bytes to read of each model, or why it cannot be opened.",
        listed(object_of(name=_TEXT, rows=_COUNT_OR_NULL, bytes=_COUNT_OR_NULL, error=_TEXT_OR_NULL)),
    ),
    says=described("The plan as text; empty for a comparison."),
    fits=described("Whether this server would start it.", {"type": "boolean"}),
)
"""Schema of :func:`planned`."""


def planned(plan: Plan, pace: Pace, limits: Limits) -> dict[str, Any]:
    """Return a plan for programs."""
    cost = cost_of(plan, pace, limits)
    comparison = plan if isinstance(plan, ReadPlan) else None
    models = []
    if isinstance(plan, SurveyReads):
        rows = plan.n_rows.items()
        models = [{"name": name, "rows": n, "bytes": plan.n_bytes[name], "error": None} for name, n in rows]
        models += [{"name": name, "rows": None, "bytes": None, "error": why} for name, why in plan.failures.items()]
    return {
        "kind": cost.kind,
        "bytes_at_least": cost.n_bytes[0],
        "bytes_if_nothing_settles_it": cost.n_bytes[1],
        "bytes_limit": limits.n_bytes,
        "bytes_of_weights": None if comparison is None else comparison.bytes_of_weights,
        "seconds_at_least": round(cost.seconds[0], 1),
        "seconds_if_nothing_settles_it": round(cost.seconds[1], 1),
        "requests": None if cost.requests is None else cost.requests.api + cost.requests.files,
        "peak_memory_bytes": cost.memory_bytes,
        "steps": [{"step": name, "bytes": n} for name, n in (() if comparison is None else comparison.steps)],
        "models": models,
        "says": "" if isinstance(plan, ReadPlan) else in_sentences(plan, pace, limits),
        "fits": not cost.why_not,
    }


def _without_titles(part: Any) -> Any:  # noqa: ANN401 - parsed JSON
    if isinstance(part, dict):
        return {k: _without_titles(v) for k, v in part.items() if k != "title" or not isinstance(v, str)}
    return [_without_titles(item) for item in part] if isinstance(part, list) else part
