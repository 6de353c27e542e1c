"""Weights that training cannot produce, in comparisons, families and surveys."""

import json
import math
from contextlib import aclosing

import pytest
import torch

from mdir_hf.lineage.survey.results import NOT_NOMINATED
from mdir_space.html.family_card import family_card
from mdir_space.html.survey_card import survey_card
from mdir_space.html.verdict_card import verdict_card
from mdir_space.jobs.question import PairQuestion, RefusedError, family_question, survey_question
from mdir_space.jobs.service import Answered, Service, ServiceSettings
from mdir_space.jobs.visitor import Visitor
from mdir_space.routes.answers import answer_of, surveyed
from tests.space.coroutines import finish
from tests.space.models import BASE, STRANGER, N, V, index_of
from tests.specimens import gaussian, mlp_of_rows, write_model

ANYBODY = Visitor("address 1.2.3.4")


def half_nan(base):
    """Return a copy with a NaN in every other row, as after a diverged run."""
    base = base.clone()
    base[::2, N // 2] = math.nan
    return base


UNREADABLE = "holds NaN or infinity"
TELLS_NOTHING = "sampled rows are informative, and 8 are needed"
# Verdicts of the comparison with its original, of the search among bases, and of a survey with its original. A survey
# does not compare models without usable neurons: None.
ABSURD = {
    "huge": (lambda base: base * 1e30, "inconclusive", "inconclusive", None),
    "one row huge": (lambda base: torch.cat([base[:1] * 1e38, base[1:]]), *("homologous",) * 3),
    "zeros": (torch.zeros_like, "inconclusive", TELLS_NOTHING, None),
    "half NaN": (half_nan, UNREADABLE, UNREADABLE, UNREADABLE),
}


def last(stream):
    async def steps():
        async with aclosing(stream) as coming:
            return [step async for step in coming]

    found = finish(steps())[-1]
    assert isinstance(found, Answered)
    return found


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_weights_give_a_verdict_or_one_sentence(hub, tmp_path, name):
    change, compared, identified, in_survey = ABSURD[name]
    base = gaussian(V, N, 0)
    layer = mlp_of_rows(base) if name == "one row huge" else None  # no neuron is huge
    hub.add_repository("owner/absurd", write_model(tmp_path / "absurd", change(base), further=layer))
    service = Service(ServiceSettings(index=index_of([BASE, STRANGER], tmp_path / "bases.safetensors")))

    for other, expected in ((BASE, compared), (STRANGER, "no_evidence" if compared == "homologous" else compared)):
        question = PairQuestion("owner/absurd", other)
        if expected == UNREADABLE:
            with pytest.raises(RefusedError, match=UNREADABLE):
                last(service.answer(question, ANYBODY))
        else:
            answered = last(service.answer(question, ANYBODY))
            assert answered.result.verdict.value == expected
            json.dumps(answer_of(answered, ""), allow_nan=False)
            assert expected in verdict_card(answered.result)

    question = family_question("owner/absurd")
    answered = last(service.answer(question, ANYBODY))
    found = answered.result.found
    said = [answered.result.not_searched] if found is None else [one.verdict or one.error for one in found.ancestors]
    assert any(identified in (text or "") for text in said)
    assert "<section" in family_card(answered.result, question)

    question = survey_question([BASE, STRANGER, "owner/absurd"])
    answered = last(service.answer(question, ANYBODY))
    report = answered.result.report
    if in_survey == UNREADABLE:
        assert UNREADABLE in report.models["owner/absurd"].error
    else:
        pair = report.pair(BASE, "owner/absurd")
        assert (None if pair is None else pair.verdict) == in_survey
        assert in_survey is not None or report.not_found(BASE, "owner/absurd") == NOT_NOMINATED
    json.dumps(surveyed(answered, ""), allow_nan=False)
    assert "<section" in survey_card(answered.result, question)
