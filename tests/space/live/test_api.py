"""The API, through gradio_client."""

import contextlib
import io
import json
import threading
import time
import zipfile
from urllib.error import HTTPError
from urllib.request import urlopen

import jsonschema
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from playwright.sync_api import expect

from mdir_hf import load_reconstruction
from mdir_space.routes.answers import IDENTIFIED, SURVEYED, VERIFIED, answer_schema
from mdir_space.routes.reconstructions import RECONSTRUCTED
from tests.loopback.faults import Fault
from tests.space.live.steps import compare, is_quiet, open_example, verdict
from tests.space.models import (
    BASE,
    DECLARED,
    DEEP,
    DEEP_MOVED,
    GATED,
    LARGE,
    LARGER,
    MEDIUM,
    MEDIUM_STRANGER,
    RELATED,
    STRANGER,
)

RESULT_TIMEOUT_S = 800
SLOW_S = 1.5
"""Delay of every read in tests that stop a job; the whole would take more than ten seconds."""


@pytest.fixture
def client(server):
    with contextlib.closing(Client(server.url, verbose=False)) as client:
        yield client


def test_a_program_finds_the_endpoints_and_nothing_of_the_page(client):
    endpoints = client.view_api(return_format="dict")["named_endpoints"]
    assert set(endpoints) == {"/compare", "/plan", "/align", "/family", "/verify", "/survey"}
    names = [parameter["parameter_name"] for parameter in endpoints["/compare"]["parameters"]]
    assert names == ["reference", "candidate", "level", "alpha"]
    assert "share weight ancestry" in endpoints["/compare"]["description"]


def test_a_comparison_gives_the_slim_report_with_words(client):
    report = client.predict(BASE, RELATED, api_name="/compare")
    assert (report["schema"], report["verdict"]) == ("mdir-hf/report/5", "homologous")
    assert report["log10_p"] < -80  # 64 neurons of the only layer at their own numbers: 1 / 64! is 10^-89
    assert report["sentence"].endswith(f"share weights ({report['strength']}).")
    assert any("no direction" in sentence for sentence in report["does_not_mean"])
    assert len(json.dumps(report)) < 8000
    jsonschema.validate(report, answer_schema())
    assert f"a={BASE}@{report['reference']['commit']}" in report["link"]

    assert client.predict(BASE, STRANGER, "auto", 1e-6, api_name="/compare")["alpha"] == 1e-6


def test_a_plan_gives_bytes_and_memory(client):
    plan = client.predict(BASE, RELATED, api_name="/plan")
    # Headers and tokenizers count as well, so the maximum exceeds the weights.
    assert 0 < plan["bytes_at_least"] <= plan["bytes_if_nothing_settles_it"]
    assert plan["bytes_of_weights"] < plan["bytes_if_nothing_settles_it"]
    assert plan["fits"] and plan["bytes_limit"] == 4_000_000_000
    assert plan["steps"][0]["step"] == "near"


def test_a_family_and_a_survey_come_to_programs_too(client, server, visit):
    found = client.predict(DECLARED, api_name="/verify")
    jsonschema.validate(found, VERIFIED)
    assert found["declares"] == [BASE] and found["bases"][0]["outcome"] == "homologous"
    compared = client.predict([BASE, RELATED, STRANGER], api_name="/survey")
    jsonschema.validate(compared, SURVEYED)
    assert sorted(map(sorted, compared["groups"])) == [[BASE, RELATED], [STRANGER]]
    assert client.predict(f"{BASE}, {RELATED} {STRANGER}", api_name="/survey")["groups"] == compared["groups"]
    assert client.predict("", "", "auto", f"{BASE} {RELATED}", api_name="/plan")["kind"] == "survey"
    known = client.predict(RELATED, api_name="/family")
    jsonschema.validate(known, IDENTIFIED)
    assert known["found"] == [BASE] and known["candidates"][0]["verdict"] == "homologous"
    for half in (found, known):
        page = visit(half["link"].removeprefix(server.url))
        verdict(page, f"It shares weight ancestry with {BASE}.")
        expect(page.locator(".verdict")).to_contain_text("Stored result of an earlier comparison", use_inner_text=True)
        assert ("Declared and measured" in page.locator(".verdict").inner_text()) is (half is found)
    with pytest.raises(AppError, match="survey does not take this models"):
        client.predict([BASE] * 30, api_name="/survey")


def test_a_program_downloads_a_reconstruction(client, server, tmp_path):
    answer = client.predict(DEEP, DEEP_MOVED, detailed=True, api_name="/align")
    jsonschema.validate(answer, RECONSTRUCTED)
    assert (answer["stream"]["kind"], answer["layers"]) == ("permutation", [[layer, layer] for layer in range(4)])
    with urlopen(answer["link"]) as response:
        content = response.read()
        assert response.headers["cache-control"] == "private, no-store"
        assert response.headers["content-disposition"].startswith("attachment")
    assert len(content) == answer["n_bytes"]
    zipfile.ZipFile(io.BytesIO(content)).extractall(tmp_path)
    assert load_reconstruction(tmp_path).stream.outer.kind == "permutation"
    assert json.loads((tmp_path / "reconstruction.json").read_text()) == answer["index"]
    for name in ("x" * 32, "..%2f..%2fetc%2fpasswd"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{server.url}/reconstruction/{name}.zip")
    assert client.predict(DEEP, DEEP_MOVED, api_name="/align")["index"] is None
    with pytest.raises(AppError, match="Only homologous models have a transformation"):
        client.predict(BASE, STRANGER, api_name="/align")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("owner/absent", BASE), "was not found on the Hub"),
        ((BASE, GATED), "is gated"),
        ((BASE, ""), "second model is not named"),
        (("/etc/passwd", BASE), "not allowed here"),
        (("x" * 10_000, BASE), "10,000 characters"),
        (("<script>alert(1)</script>", BASE), "does not name a model"),
        ((BASE, RELATED, "everything"), "is unknown"),
        ((BASE, RELATED, "auto", 7.0), "Alpha is 7"),
    ],
)
def test_a_refused_program_gets_the_reason_in_a_sentence(client, arguments, message):
    with pytest.raises(AppError, match=message) as caught:
        client.predict(*arguments, api_name="/compare")
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value)) < 1200


def test_a_program_follows_the_progress_in_bytes(client, live_hub):
    live_hub.faults.append(Fault("slow", origin="cdn", path="large", times=None, delay_s=0.1))
    job = client.submit(LARGE, LARGER, "auto", 1e-7, api_name="/compare")
    seen = []
    while not job.done():
        seen += [unit for unit in job.status().progress_data or [] if unit.unit == "bytes"]
        time.sleep(0.05)
    assert job.result(timeout=RESULT_TIMEOUT_S)["verdict"] == "no_evidence"
    assert any(unit.index and unit.desc == "embeddings" for unit in seen)


def test_a_program_that_cancels_stops_the_reading(client, live_hub):
    live_hub.faults.append(Fault("slow", origin="cdn", path="large", times=None, delay_s=SLOW_S))
    job = client.submit(LARGE, LARGER, "auto", 1e-8, api_name="/compare")
    while not any(unit.index for unit in job.status().progress_data or []):
        time.sleep(0.05)
    job.cancel()
    assert is_quiet(live_hub)


def test_a_token_in_the_header_reads_for_that_caller_alone(server, live_hub, client):
    own = Client(server.url, verbose=False, headers={"x-hf-token": live_hub.token})
    with contextlib.closing(own):
        assert own.predict(BASE, GATED, api_name="/compare")["verdict"] == "homologous"
    with pytest.raises(AppError, match="is gated"):
        client.predict(BASE, GATED, api_name="/compare")
    other = Client(server.url, verbose=False, headers={"x-hf-token": live_hub.outsider_token})
    with contextlib.closing(other), pytest.raises(AppError, match="has not been granted access"):
        other.predict(BASE, GATED, api_name="/compare")


def test_many_calls_at_once_are_answered_or_refused(server, live_hub, visit):
    live_hub.faults.append(Fault("slow", origin="cdn", path="medium", times=None, delay_s=0.02))
    # On a busy machine, a submission may wait longer than the client's timeout of five seconds, which is not tested.
    clients = [
        Client(
            server.url,
            verbose=False,
            headers={"x-forwarded-for": f"8.8.0.{k}"},
            httpx_kwargs={"timeout": RESULT_TIMEOUT_S},
        )
        for k in range(4)
    ]
    outcomes = []

    def ask(client, alpha):
        try:
            job = client.submit(MEDIUM, MEDIUM_STRANGER, "auto", alpha, api_name="/compare")
            outcomes.append(job.result(RESULT_TIMEOUT_S))
        except AppError as refused:
            outcomes.append(str(refused))

    threads = [
        threading.Thread(target=ask, args=(client, 10.0 ** -(20 + 3 * k + j)))
        for k, client in enumerate(clients)
        for j in range(3)
    ]
    for thread in threads:
        thread.start()
    page = visit(extra_http_headers={"x-forwarded-for": "8.8.1.1"})
    open_example(page, "fine-tune")
    verdict(page, "share weights (p ≤")
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()

    assert len(outcomes) == 12
    answered = [outcome["verdict"] for outcome in outcomes if isinstance(outcome, dict)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert set(answered) == {"no_evidence"}
    assert len(answered) >= 5
    assert all("queue is full" in words or "comparisons of yours" in words for words in refused)

    compare(page, BASE, RELATED)
    verdict(page, "share weights (p ≤")
