"""Answers for programs and agents: short dictionaries with words, and their JSON Schemas."""

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
    "headline": "The verdict as a sentence.",
    "sentence": "What was found, as a sentence to quote.",
    "means": "What the verdict means, in words to quote.",
    "cut_short": "Why something was not looked at, where a limit of this server came before; else empty.",
    "link": "Page that shows this result, pinned to the two commits; empty where it is not for everybody.",
}
"""What stands beside a report, each one string, and what it is."""


def answer_of(answered: Answered[HomologyReport], link: str, *, detailed: bool = False) -> dict[str, Any]:
    """Return an answer: the words of :data:`WORDS`, ``does_not_mean``, and the fields of a report.

    Args:
        answered: What was found.
        link: Of :data:`WORDS`.
        detailed: Whether the report is whole. Else it is some kilobytes: lists that are only good for pictures are
            empty, of the looks at a matrix the last one stays, and of the modules the strongest of each role.
    """
    report = answered.result
    words = {
        "headline": report.headline,
        "sentence": report.sentence,
        "means": report.means,
        "cut_short": answered.cut_short,
        "link": link,
    }
    body = json.loads(report.to_json())
    return {**words, "does_not_mean": list(report.does_not_mean), **(body if detailed else _slim(body))}


def _slim(body: dict[str, Any]) -> dict[str, Any]:
    for name in ("embedding", "unembedding"):
        if body[name] is not None:
            body[name]["looks"] = body[name]["looks"][-1:]
    if body["layers"] is not None:
        body["layers"]["matrix"] = []
    if body["modules"] is not None:
        strongest: dict[str, dict[str, Any]] = {}
        for module in body["modules"]:
            known = strongest.get(module["role"])
            if known is None or module["log10_p"] < known["log10_p"]:
                strongest[module["role"]] = {**module, "found": None}
        body["modules"] = list(strongest.values())
    body["io"]["files"] = []
    return body


@cache
def answer_schema() -> dict[str, Any]:
    """The JSON Schema of :func:`answer_of`: that of a report, with the words beside it."""
    report = json.loads((files("mdir_hf.report") / "report.schema.json").read_text(encoding="utf-8"))
    words: dict[str, Any] = {name: {"type": "string", "description": what} for name, what in WORDS.items()}
    words["does_not_mean"] = {
        "type": "array",
        "items": {"type": "string"},
        "description": "What must not be concluded from it.",
    }
    schema = {
        "type": "object",
        "description": "A report of mdir-hf with its words. homologous: the weights share ancestry.",
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
    "description": "Whether p bounds a chance. Where not, log10_p says how much agrees: quote it as no p.",
}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(properties),
    }


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _said(what: str, of: dict[str, Any] = _TEXT) -> dict[str, Any]:
    return {**of, "description": what}


_COMMON = {
    "says": _said("The whole answer in lines for people."),
    "cut_short": _said(WORDS["cut_short"]),
    "link": _said("Page that shows this result, pinned to the commit of the model; empty where it is kept nowhere."),
}

IDENTIFIED = _object(
    **_COMMON,
    model=_said("The model, at the commit that was read."),
    found=_said("Base models with which it shares weight ancestry, most likely first.", _list(_TEXT)),
    candidates=_said(
        "Base models that the index proposed, with what comparing the models said.",
        _list(
            _object(
                base=_TEXT,
                verdict=_VERDICT,
                log10_p=_said("By the index.", {"type": "number"}),
                p_is_bound=_P_IS_BOUND,
                sentence=_said("What the comparison found, to quote; null where none was made.", _TEXT_OR_NULL),
                error=_TEXT_OR_NULL,
            )
        ),
    ),
    bases=_said("How many base models the index holds.", _COUNT),
    bases_of_width=_said(
        "How many of them a plain copy could be of: those as wide as the model that share enough tokens with it.",
        _COUNT,
    ),
    excluded_noise=_said(
        "A copy of any of those under noise of up to so many times the weights would have been found, unless its "
        "channels were rotated.",
        _NUMBER_OR_NULL,
    ),
    bytes_read=_COUNT,
)
"""What :func:`identified` gives."""


def identified(answered: Answered[Family], link: str) -> dict[str, Any]:
    """Return with which base models of the index a model shares ancestry.

    Args:
        answered: What was found; the index was searched.
        link: Of :data:`IDENTIFIED`.
    """
    found = answered.result.found
    assert found is not None, "a search that fails is refused"
    return {
        "says": str(found),
        "cut_short": answered.cut_short,
        "link": link,
        "model": found.model.pinned,
        "found": [one.base.repo for one in found.found],
        "candidates": [
            {
                "base": one.base.pinned,
                "verdict": None if one.verdict is None else str(one.verdict),
                "log10_p": one.log10_p,
                "p_is_bound": one.p_is_bound,
                "sentence": None if one.report is None else one.report.sentence,
                "error": one.error,
            }
            for one in found.ancestors
        ],
        "bases": found.n_bases,
        "bases_of_width": found.n_of_width,
        "excluded_noise": found.excluded_noise,
        "bytes_read": found.bytes_read,
    }


VERIFIED = _object(
    **_COMMON,
    declares=_said("Base models that the card declares.", _list(_TEXT)),
    relation=_said("How, as the card says: finetune, merge, quantized or adapter.", _TEXT_OR_NULL),
    bases=_said(
        "What comparing the model with each of them said.",
        _list(
            _object(
                base=_TEXT,
                outcome=_said("A verdict, or not_measured."),
                sentence=_said("What was found, to quote; null where nothing was compared.", _TEXT_OR_NULL),
                log10_p=_NUMBER_OR_NULL,
                p_is_bound=_P_IS_BOUND,
                why_not=_TEXT_OR_NULL,
            )
        ),
    ),
    cycle=_said(
        "Models that declare each other in a ring; null where none do.",
        {"type": ["array", "null"], "items": {"type": "string"}},
    ),
    bom=_said(
        "Bill of materials of the model, a CycloneDX 1.6 document: declared bases that the weights confirm are its "
        "ancestors. null where it could not be made.",
        {"type": ["object", "null"]},
    ),
)
"""What :func:`verified` gives."""


def verified(answered: Answered[Family], link: str) -> dict[str, Any]:
    """Return what a model's card declares beside what its weights say.

    Args:
        answered: What was found; the card was looked at.
        link: Of :data:`VERIFIED`.
    """
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
                "base": one.base,
                "outcome": str(one.outcome),
                "sentence": None if one.report is None else one.report.sentence,
                "log10_p": None if one.report is None else one.report.log10_p,
                "p_is_bound": one.report is not None and one.report.p_is_bound,
                "why_not": one.why_not,
            }
            for one in check.bases
        ],
        "cycle": None if check.cycle is None else list(check.cycle),
        "bom": json.loads(bom) if (bom := bom_of_family(answered.result)) else None,
    }


SURVEYED = _object(
    cut_short=_said(WORDS["cut_short"]),
    link=_said("Page that shows this survey, pinned to the commits of its models; empty where it is kept nowhere."),
    left_out=_said("Which models of the list are not in it; empty where all are."),
    groups=_said(
        "Models that share ancestry, directly or through others; the rest stand alone.",
        _list(_list(_TEXT)),
    ),
    compared=_said(
        "What was compared of each pair: embeddings and a few neurons; with layers also those of models without a "
        "relative."
    ),
    models=_said("Every model, with why it could not be read.", _list(_object(name=_TEXT, error=_TEXT_OR_NULL))),
    pairs=_said(
        "Every pair that was compared.",
        _list(
            _object(reference=_TEXT, candidate=_TEXT, verdict=_VERDICT, log10_p=_NUMBER_OR_NULL, p_is_bound=_P_IS_BOUND)
        ),
    ),
    trees=_said(
        "Of each group: its tree, with branch lengths and supports in per cent; null for two.",
        _list(_object(members=_list(_TEXT), newick=_TEXT_OR_NULL)),
    ),
)
"""What :func:`surveyed` gives."""


def surveyed(answered: Answered[SurveyResult], link: str) -> dict[str, Any]:
    """Return which of several models share ancestry.

    Args:
        answered: What was found.
        link: Of :data:`SURVEYED`.
    """
    report = answered.result.report
    return {
        "cut_short": answered.cut_short,
        "link": link,
        "left_out": answered.result.left_out,
        "groups": [list(group) for group in report.groups()],
        "compared": report.compared,
        "models": [{"name": one.name, "error": one.error} for one in report.models.values()],
        "pairs": [
            {
                "reference": pair.reference,
                "candidate": pair.candidate,
                "verdict": None if pair.verdict is None else str(pair.verdict),
                "log10_p": pair.log10_p,
                "p_is_bound": pair.p_is_bound,
            }
            for pair in report.pairs.values()
        ],
        "trees": [{"members": list(tree.members), "newick": tree.newick} for tree in answered.result.trees],
    }


PLANNED = _object(
    kind=_said("Which of the tools it is the plan of.", {"enum": ["comparison", "family", "survey"]}),
    bytes_at_least=_said("Bytes of weights that are read in any case.", _COUNT),
    bytes_if_nothing_settles_it=_said(
        "About what is read where every step is needed, except neurons of all layers and comparisons that follow.",
        _COUNT,
    ),
    bytes_limit=_said("More than this is never read here; null: no limit.", _COUNT_OR_NULL),
    bytes_of_weights=_said("Stored size of both models; null but for a comparison.", _COUNT_OR_NULL),
    seconds_at_least=_said("How long that takes, by estimate.", _SECONDS),
    seconds_if_nothing_settles_it=_said("Likewise, where every step is needed.", _SECONDS),
    requests=_said("Requests to the Hub, at most; null for a comparison.", _COUNT_OR_NULL),
    peak_memory_bytes=_said("Memory needed, by estimate; null where not planned.", _COUNT_OR_NULL),
    common_tokens=_said("Tokens that both vocabularies hold; null but for a comparison.", _COUNT_OR_NULL),
    excluded_noise=_said(
        "A copy under noise of up to so many times the weights would be found by its embeddings, unless its "
        "channels were rotated: of the other model, of any base of the index that is as wide, or in each pair. Null: "
        "none would.",
        _NUMBER_OR_NULL,
    ),
    models=_said(
        "Of a survey: the rows and bytes that are read of each model, or why it cannot be opened.",
        _list(_object(name=_TEXT, rows=_COUNT_OR_NULL, bytes=_COUNT_OR_NULL, error=_TEXT_OR_NULL)),
    ),
    says=_said("The plan in words; empty for a comparison."),
    fits=_said("Whether it would be started here.", {"type": "boolean"}),
)
"""What :func:`planned` returns."""


def planned(plan: Plan, pace: Pace, limits: Limits) -> dict[str, Any]:
    """Return a plan as programs get it."""
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
        "common_tokens": None if comparison is None else comparison.common_tokens,
        "excluded_noise": cost.excluded_noise,
        "models": models,
        "says": "" if isinstance(plan, ReadPlan) else in_sentences(plan, pace, limits),
        "fits": not cost.why_not,
    }


def _without_titles(part: Any) -> Any:  # noqa: ANN401 - parsed JSON
    if isinstance(part, dict):
        return {k: _without_titles(v) for k, v in part.items() if k != "title" or not isinstance(v, str)}
    return [_without_titles(each) for each in part] if isinstance(part, list) else part
