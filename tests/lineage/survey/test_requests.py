"""A survey announces its number of requests and sends no more."""

import pytest

from mdir_hf.cli import main
from mdir_hf.errors import InputError, StoppedError
from mdir_hf.lineage.survey.folder import SurveyState
from mdir_hf.lineage.survey.reads import plan_reads, planned_requests, requests_of
from mdir_hf.lineage.survey.run import SurveyPlan, open_folder, prepare_survey, run_survey, survey
from mdir_hf.lineage.survey.saving import add_declared
from mdir_hf.model.open import Reading
from tests.loopback.limits import bucket_of
from tests.specimens import gaussian, tokens, write_model


def sent_since(hub, plan, folder, **what):
    """Run a step of a survey; return its planned requests, and the number sent by class."""
    with open_folder(plan, folder) as state:
        planned = requests_of(plan, state, **what)
        hub.requests.clear()
        if what.get("only_sample"):
            prepare_survey(plan, state)
        else:
            report = run_survey(plan, state)
            if what.get("with_cards"):
                add_declared(report, plan.reading)
    sent = [bucket_of(request.path) for request in hub.sent("hub")]
    return planned, sent.count("api"), sent.count("resolvers")


def test_the_planned_number_of_requests_bounds_the_sent_number(population, loopback_hub, tmp_path):
    names = []
    for at, folder in enumerate(population.values()):
        names.append(f"some/model-{at}")
        loopback_hub.add_repository(names[-1], folder)
    plan = SurveyPlan(tuple(names), n_tokens=512, progress=False)
    steps = [
        (plan, {"only_sample": True}, 1, len(names)),
        (plan, {"with_cards": True}, 2, 0),  # the tokenizers are cached
        (plan, {}, 0, 0),  # everything is cached
    ]
    for asked, what, n_opened, fewest in steps:
        planned, api, files = sent_since(loopback_hub, asked, tmp_path / "out", **what)
        assert planned.n_models == (len(names) if n_opened else 0)
        assert api <= planned.api == n_opened * len(names)
        assert fewest <= files <= planned.files <= 12 * len(names)


def test_a_large_survey_states_the_duration_of_its_requests(hf_home, monkeypatch):
    names = [f"some/model-{number}" for number in range(600)]
    planned = planned_requests(Reading(), for_tokens=names, for_rows=names)
    assert "600 models on the Hub: up to 1,200 requests to its API" in str(planned)
    assert "an address without a token 500 and 3,000; they take 10 minutes or more" in str(planned)
    few = planned_requests(Reading(token="hf_x"), for_tokens=names[:5], for_rows=names[:5])
    assert few.at_least_s == 0
    assert str(few).endswith("a user 1,000 and 5,000")


def test_the_number_of_requests_is_shown_before_any_is_sent(population, loopback_hub, tmp_path, capsys, monkeypatch):
    names = [f"some/model-{at}" for at in range(len(population))]
    monkeypatch.setattr("mdir_hf.lineage.survey.run.run_survey", stop_before_anything)
    monkeypatch.setattr("mdir_hf.lineage.survey.run.prepare_survey", stop_before_anything)
    for more, n_api in (([], 2), (["--prepare"], 1), (["--declared"], 3)):
        assert main(["survey", *names, "--output", str(tmp_path / "out"), *more]) == 1
        assert f"up to {n_api * len(names)} requests to its API" in capsys.readouterr().err
    assert not loopback_hub.requests


def stop_before_anything(*_, **__):
    raise StoppedError("here")


def test_the_reads_of_a_survey_are_known_in_advance(population, tmp_path):
    far = write_model(tmp_path / "far", gaussian(300, 64, 40), words=tokens(300, first=50_000))
    names = (*population.values(), str(far), str(tmp_path / "absent"))
    plan = SurveyPlan(names, n_tokens=512, progress=False)
    reads = plan_reads(plan)
    state = SurveyState(plan.names, plan.settings)
    report = run_survey(plan, state)
    rows = state.all_rows()
    assert reads.n_rows == {name: len(found.tokens) for name, found in rows.items()}
    assert all(reads.n_bytes[name] <= report.models[name].bytes_read for name in rows)
    assert reads.failures.keys() == {str(tmp_path / "absent")}
    # The neurons of one model have another number, so it can be compared with none of the others by number.
    assert reads.n_pairs == len(report.pairs) + 6 == report.n_possible_pairs


def test_a_string_is_not_a_list_of_models():
    with pytest.raises(InputError, match=r"a list of names, not one text: \['owner/one', 'owner/other'\]"):
        survey("owner/one, owner/other")
