"""A survey says how many requests it sends, and sends no more."""

from __future__ import annotations

from mdir_hf.comparison.opening import Reading
from mdir_hf.survey.requests import API_REQUESTS, planned_requests
from mdir_hf.survey.run import SurveyPlan, run_survey
from tests.hub.fixtures import hf_home, loopback_hub
from tests.loopback.limits import bucket_of

__all__ = ["hf_home", "loopback_hub"]


def test_what_is_planned_is_no_less_than_what_is_sent_and_no_guess(population, loopback_hub, tmp_path):
    names = []
    for at, folder in enumerate(population.values()):
        names.append(f"some/model-{at}")
        loopback_hub.add_repository(names[-1], folder)
    planned = planned_requests(names, Reading())
    run_survey(SurveyPlan(tuple(names), n_tokens=512, progress=False), tmp_path / "out")
    sent = [bucket_of(request.path) for request in loopback_hub.sent("hub")]
    assert planned.n_models == len(names)
    assert sent.count("api") <= planned.api == API_REQUESTS * len(names)
    assert planned.files / 5 <= sent.count("resolvers") <= planned.files


def test_folders_and_models_offline_ask_nothing(population, hf_home):
    assert planned_requests(population.values(), Reading()).n_models == 0
    assert planned_requests(["owner/name"], Reading(local_files_only=True)).files == 0


def test_a_survey_of_many_says_how_long_the_hub_takes(hf_home, monkeypatch):
    names = [f"some/model-{number}" for number in range(600)]
    planned = planned_requests(names, Reading())
    assert "600 models on the Hub: up to 1,200 requests to its API" in str(planned)
    assert "an address without a token 500 and 3,000; they are spread over 10 minutes or more" in str(planned)
    few = planned_requests(names[:5], Reading(token="hf_x"))
    assert few.at_least_s == 0
    assert str(few).endswith("a user 1,000 and 5,000")
