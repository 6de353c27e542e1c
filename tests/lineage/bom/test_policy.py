"""``verify --bom --require``: exit status 0 only if every statement of a bill of materials was checked and holds."""

import json
import os
import time
import tracemalloc
from dataclasses import replace

import pytest

from mdir_hf.cli import main
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import InputError
from mdir_hf.lineage.bom.check import MOST_CLAIMS, MOST_FAILURES, MOST_LOOKUPS, check_bom
from mdir_hf.lineage.bom.read import read_bom, read_bom_file
from mdir_hf.lineage.bom.result import result_without_hub
from mdir_hf.lineage.policy import Condition, exit_status
from tests.lineage.bom.models import serve_family
from tests.lineage.bom.test_check import a_file, abbreviated, commit_of, document, listed, sha256
from tests.loopback.faults import Fault

QUIET = Listeners(progress=False)


@pytest.fixture
def hub(loopback_hub, tmp_path):
    """A Hub on which me/tuned also has a branch named like an abbreviated commit, and a small file named like weights.

    me/alias and me/former lead to me/tuned with status 307.
    """
    serve_family(loopback_hub, tmp_path)
    folder = tmp_path / "me" / "tuned"
    (folder / "note.pt").write_bytes(100 * b"n")
    commit = loopback_hub.add_repository("me/tuned", folder, revisions={"abcdef1": tmp_path / "owner" / "stranger"})
    files = loopback_hub.find("me/tuned").commits[commit]
    files["note.pt"] = replace(files["note.pt"], is_lfs=False)  # the Hub lists no SHA-256 of it
    loopback_hub.add_repository("owner/gated", tmp_path / "owner" / "base", gated=True)
    loopback_hub.rename_repository("me/tuned", "me/present")
    loopback_hub.rename_repository("me/present", "me/tuned")
    loopback_hub._renamed = {"me/former": "me/tuned", "me/alias": "me/tuned"}
    return loopback_hub


@pytest.fixture
def tuned(hub):
    """Return me/tuned as a bill lists it, pinned and with its base, except for the given fields."""

    def component(*, commit=None, bases=("owner/base",), **more):
        return listed("me/tuned", commit=commit or commit_of(hub, "me/tuned"), bases=bases, **more)

    return component


@pytest.fixture
def status(tmp_path, capsys):
    """Return the exit status for a bill, and the lines on standard error."""

    def of(content, *require):
        path = tmp_path / "bom.json"
        path.write_bytes(content)
        words = [word for conditions in require for word in ("--require", conditions)]
        return main(["verify", "--bom", str(path), "--quiet", *words]), capsys.readouterr().err.splitlines()

    return of


def stored(hub, path):
    return hub.find("me/tuned").commits[commit_of(hub, "me/tuned")][path]


def ancestor(base):
    return {"pedigree": {"ancestors": [base]}}


def nested(component, depth):
    for _ in range(depth):
        component = {"type": "application", "name": "wrapper", "components": [component]}
    return component


def whole(hub, tuned):
    """Return me/tuned with true digests of all its files."""
    files = [a_file(name, stored(hub, name).sha256) for name in ("model.safetensors", "note.pt", "config.json")]
    return tuned(components=files, hashes=[sha256(stored(hub, "model.safetensors").sha256)])


TRUE_BILLS = {
    "commit and base": lambda hub, tuned: document(tuned()),
    "beside an application": lambda hub, tuned: document(tuned(), a_file("setup.py", "0" * 64)),
    "digests of all files": lambda hub, tuned: document(whole(hub, tuned)),
    "abbreviated commit": lambda hub, tuned: document(tuned(commit=abbreviated(commit_of(hub, "me/tuned")))),
    "at a depth of 100": lambda hub, tuned: document(nested(whole(hub, tuned), 100)),
    "base in a model card": lambda hub, tuned: document(
        tuned(bases=[]) | {"modelCard": {"properties": [{"name": "base_model", "value": "owner/base"}]}}
    ),
    "variant and descendant that share weights": lambda hub, tuned: document(
        tuned()
        | {
            "pedigree": {
                "ancestors": [listed("owner/base")],
                "variants": [listed("me/lost")],
                "descendants": [listed("me/forged")],
            }
        }
    ),
    "base at a commit": lambda hub, tuned: document(
        tuned() | ancestor(listed("owner/base", commit=commit_of(hub, "owner/base")))
    ),
    "a library": lambda hub, tuned: document({**tuned(), "type": "library"}),
    "data": lambda hub, tuned: document(tuned(components=[{**a_file("wiki", "0" * 64), "type": "data"}])),
    "in the metadata": lambda hub, tuned: document(metadata={"component": whole(hub, tuned)}),
    "in a service": lambda hub, tuned: document(services=[whole(hub, tuned)]),
}


def mutations_of_a_bill(text, commits, files):
    """Yield bills with one other base, commit, or digest of a file of the model."""
    yield "another base", text.replace("owner/base", "owner/stranger")
    yield "no base", text.replace("owner/base", "owner/gone")
    yield "another variant", text.replace("me/lost", "owner/stranger")
    yield "another descendant", text.replace("me/forged", "owner/stranger")
    yield "another model", text.replace("me/tuned", "owner/stranger")
    for digest in files:
        yield f"digest {digest[:8]}", text.replace(digest, digest[::-1])
    for commit in commits:
        digits = next((commit[:n] for n in range(40, 7, -1) if f"@{commit[:n]}" in text), None)
        if digits is not None:
            yield f"commit {digits}", text.replace(f"@{digits}", f"@{'0' * len(digits)}")


@pytest.mark.parametrize("bill", TRUE_BILLS)
def test_a_true_bill_passes_and_every_mutation_of_it_fails(hub, tuned, status, bill):
    content = TRUE_BILLS[bill](hub, tuned)
    for conditions in (["all"], [], ["pins, digests,bases"], ["pins", "digests"]):
        assert status(content, *conditions) == (0, [])
    commits = [commit_of(hub, name) for name in ("me/tuned", "owner/base")]
    files = [stored(hub, name).sha256 for name in ("model.safetensors", "note.pt", "config.json")]
    text = content.decode()
    n_mutations = 0
    for name, mutated in mutations_of_a_bill(text, commits, files):
        if mutated != text:
            n_mutations += 1
            assert status(mutated.encode(), "all")[0] in (1, 3), name
    assert n_mutations >= 4


def purl(base, qualifiers):
    return listed(base) | {"purl": f"pkg:huggingface/{base}?{qualifiers}"}


BROKEN = {
    "wrong digest of the model": (lambda t: t(hashes=[sha256("0" * 64)]), "digests", 3, "and not the stated"),
    "wrong digest of a file": (lambda t: t(components=[a_file("model.safetensors", "0" * 64)]), "digests", 3,
                               "model.safetensors: has the SHA-256"),
    "wrong digest of a small file": (lambda t: t(components=[a_file("note.pt", "0" * 64)]), "digests", 3,
                                     "note.pt: has"),
    "wrong digest of a nested file": (
        lambda t: t(components=[{"type": "container", "components": [a_file("note.pt", "0" * 64)]}]), "digests", 3, ""),
    "digest of no file": (lambda t: t(components=[a_file("gone.bin", "0" * 64)]), "digests", 3, "no such file"),
    "another algorithm": (lambda t: t(hashes=[{"alg": "SHA-512", "content": "0" * 128}]), "digests", 3,
                          "its SHA-512 cannot be checked"),
    "digest outside of any model": (lambda t: [t(), a_file("model.safetensors", "0" * 64)], "digests", 3,
                                    "model.safetensors: its digest is stated outside of any model"),
    "weights as data": (lambda t: t(components=[{**a_file("note.pt", "0" * 64), "type": "data"}]), "digests", 3,
                        "note.pt: has"),
    "cut digest": (lambda t: t(hashes=[sha256("0" * 63)]), "digests", 3, "and not the stated"),
    "digest of a base": (lambda t: t() | ancestor(listed("owner/base", hashes=[sha256("0" * 64)])), "digests", 3,
                         "owner/base: model.safetensors: has"),
    "no commit and no digest": (lambda t: without_commit(t()), "digests", 3, "neither a digest nor a commit"),
    "no commit": (lambda t: without_commit(t()), "pins", 3, "none is stated"),
    "commit that is gone": (lambda t: t(commit="a" * 40), "pins", 3, "does not have the stated commit"),
    "branch like a commit": (lambda t: t(commit="abcdef1"), "pins", 3, "abcdef1 is a branch or tag, and not a commit"),
    "abbreviated commit that is gone": (lambda t: t(commit="abcdef2"), "pins", 3, "does not have the stated commit"),
    "branch": (lambda t: t(commit="main"), "pins", 3, "not one commit: main"),
    "date": (lambda t: t(commit="20240101"), "pins", 3, "not one commit: 20240101"),
    "two commits": (lambda t: t(version="b" * 40), "pins", 3, f" and {40 * 'b'}"),
    "model of another host": (
        lambda t: {**t(), "purl": "pkg:huggingface/me/tuned?repository_url=https://hub.example"}, "pins", 3,
        "another host, https://hub.example"),
    "missing model": (lambda t: listed("me/gone", commit="a" * 40, bases=["owner/base"]), "pins", 3, "not found"),
    "model without a name": (lambda t: {"type": "machine-learning-model"}, "pins", 3, "names no repository on the Hub"),
    "long package URL": (lambda t: {**t(), "purl": "pkg:huggingface/" + 2000 * "%41"}, "pins", 3, "the limit is 2,000"),
    "one of two components with one purl": (
        lambda t: [t(), t(hashes=[sha256("0" * 64)], **{"bom-ref": "two"})], "digests", 3, "and not the stated"),
    "base of another host": (
        lambda t: t() | ancestor(purl("owner/base", "repository_url=https%3A%2F%2Fhub.example")), "bases", 3,
        "another host, https://hub.example"),
    "base of a host that looks like the Hub": (
        lambda t: t() | ancestor(purl("owner/base", "a=b&repository_url=https://huggingface.co.example")), "bases", 3,
        "another host"),
    "commit of a base that is gone": (lambda t: t() | ancestor(listed("owner/base", commit="a" * 40)), "bases", 3,
                                      "does not have the stated commit"),
    **{f"two commits of a base, {condition}": (
        lambda t: t() | ancestor(listed("owner/base", commit="a" * 40, version="b" * 40)), condition, 3,
        "its version and its package URL state different commits: ") for condition in ("bases", "pins")},
    **{f"stranger in {field}": (
        lambda t, field=field: t() | {"pedigree": {"ancestors": [listed("owner/base")], field: [
            listed("owner/stranger")]}}, "bases", 3, f"(pedigree.{field}): not confirmed"
        ) for field in ("variants", "descendants")},
    "variant that is no base": (lambda t: t(bases=[]) | {"pedigree": {"variants": [listed("owner/base")]}}, "bases", 3,
                                "the bill states no base of a model"),
    "missing variant": (lambda t: t() | {"pedigree": {"ancestors": [listed("owner/base")], "variants": [
        listed("me/gone")]}}, "bases", 3, "variant me/gone (pedigree.variants): not found"),
    "no base": (lambda t: t(bases=[]), "bases", 3, "the bill states no base of a model"),
    "missing base": (lambda t: t(bases=["owner/gone"]), "bases", 3, "not found"),
    "base without a repository": (lambda t: t() | ancestor({"name": "base"}), "bases", 3, "no repository on the Hub"),
    "base that the weights do not show": (lambda t: t(bases=["owner/base", "owner/stranger"]), "bases", 3,
                                          "contradicted"),
    "own base": (lambda t: t(bases=["me/tuned"]), "bases", 3, "own base: the model is stated as its own base"),
    "own base in another case": (lambda t: t(bases=["Me/TUNED"]), "bases", 3, "own base"),
    "own base by an alias": (lambda t: t(bases=["me/alias"]), "bases", 3, "own base: .* on the Hub, both are me/tuned"),
    "own base by a former name": (lambda t: t(bases=["me/former"]), "bases", 3, "own base"),
    "own base at another commit": (lambda t: t(bases=["me/tuned@abcdef1"]), "bases", 3, "own base"),
    "own base as a component of its own": (
        lambda t: [{**t(bases=[]), "bom-ref": "one"}, {**t(bases=["me/alias"]), "bom-ref": "two"}], "bases", 3,
        "own base"),
    "gated base": (lambda t: t(bases=["owner/gated"]), "bases", 1, "not read"),
    "gated base beside a true one": (lambda t: t(bases=["owner/base", "owner/gated"]), "bases", 1, "not read"),
}  # fmt: skip


def without_commit(component):
    return {**component, "purl": component["purl"].partition("@")[0]}


@pytest.mark.parametrize("case", BROKEN)
def test_a_statement_that_does_not_hold_fails(hub, tuned, status, case):
    make, condition, expected, line = BROKEN[case]
    components = make(tuned)
    bill = document(*(components if isinstance(components, list) else [components]))
    exit_code, lines = status(bill, condition)
    assert exit_code == expected
    assert any(f": {condition}: " in text and _has(text, line) for text in lines), lines
    assert all(text.startswith("mdir-hf: not ") for text in lines)
    assert status(bill, "all")[0] == expected


def _has(text, line):
    at = 0
    for part in line.split(" .* "):
        at = text.find(part, at)
        if at < 0:
            return False
    return True


@pytest.mark.parametrize(
    "bill",
    [
        document(),
        document({"type": "library", "name": "numpy", "purl": "pkg:pypi/numpy@2.0"}),
        document({"type": "data", "name": "owner/text", "purl": "pkg:huggingface/owner/text"}),
        document(services=[{"name": "chat", "endpoints": ["https://chat.example"]}]),
    ],
    ids=["empty", "packages", "data", "services"],
)
def test_a_bill_without_a_model_fails_every_condition(status, bill):
    for condition in ("pins", "digests", "bases", "all"):
        exit_code, lines = status(bill, condition)
        assert exit_code == 3 and lines[0].endswith("the bill lists no machine-learning model")
    assert status(bill) == (0, [])


@pytest.mark.parametrize("depth", [1, 63, 64, 65, 200])
def test_a_model_is_found_at_any_depth(hub, tuned, status, depth):
    assert status(document(nested(tuned(commit="a" * 40), depth)), "pins")[0] == 3
    chain = listed("owner/stranger")
    for _ in range(depth):
        chain = listed("owner/base") | ancestor(chain)
    assert status(document(tuned() | ancestor(chain)), "bases")[0] == 3


def test_a_model_card_makes_a_model(hub, tuned, status):
    component = {**tuned(commit="main"), "type": "application", "purl": None, "name": "me/tuned", "modelCard": {}}
    assert status(document(component), "pins")[0] == 3


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=429, times=None),
        Fault("status", path="/api/models/owner/base", status=429, times=None),
        Fault("status", path="/owner/base/resolve", status=503, times=None),
        Fault("hang_up", times=None),
        Fault("status", path="/api/models/me/tuned", status=500, times=None),
    ],
    ids=["429", "429 midway", "no files", "out of reach", "no model"],
)
def test_a_hub_that_cannot_be_read_is_a_failure(hub, tuned, status, waits, fault):
    hub.faults.append(fault)
    for require in ([], ["all"], ["bases"]):
        exit_code, lines = status(document(tuned()), *require)
        assert exit_code == 1 and any("not read" in line for line in lines)


def test_the_network_may_be_forbidden(hub, tuned, status, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert status(document(tuned()), "all")[0] == 1


def test_a_hub_that_fails_is_not_asked_for_every_model(hub, waits):
    hub.faults.append(Fault("status", status=503, times=None))
    names = [f"me/m{number}" for number in range(100)]
    check = check_bom(read_bom(document(*map(listed, names))), listeners=QUIET)
    asked = {request.path.partition("?")[0] for request in hub.requests if "/api/models/" in request.path}
    assert len(asked) == MOST_FAILURES
    assert all(model.state == "not_read" for model in check.models)
    assert f"failed {MOST_FAILURES} times in a row" in check.models[-1].why


def test_requests_are_bounded(hub):
    bases = [f"owner/missing-{number}" for number in range(1000)]
    check = check_bom(read_bom(document(listed("me/tuned", bases=bases))), listeners=QUIET)
    n_requests = len(hub.requests)
    assert n_requests <= MOST_LOOKUPS + 1  # the client may ask who it is
    assert [claim.outcome.value for claim in check.claims].count("not_found") >= MOST_LOOKUPS - 2
    assert f"only the first {MOST_LOOKUPS} look-ups" in check.claims[-1].why
    assert exit_status(check.failures(frozenset(Condition))) == 3


def test_a_bill_with_more_than_the_limit_does_not_pass(hub, monkeypatch):
    monkeypatch.setattr("mdir_hf.lineage.bom.check.MOST_CLAIMS", 1)
    bill = document(listed("me/tuned", bases=["owner/base"]), listed("me/forged", bases=["owner/base"]))
    check = check_bom(read_bom(bill), listeners=QUIET)
    assert [claim.outcome.value for claim in check.claims] == ["confirmed", "not_measured"]
    assert exit_status(check.failures({Condition.BASES})) == 3 and MOST_CLAIMS > 1


@pytest.mark.parametrize("kind", ["models", "bases", "bases of many models", "digests", "parts", "one purl"])
def test_time_is_linear_in_the_bill(hub, kind):
    """100,000 entries took over 95 s when each step copied the results; they take seconds."""

    def seconds(n_entries):
        models = ({"type": "machine-learning-model", "name": f"m{number}"} for number in range(n_entries))
        if kind == "models":
            bill = document(*models)
        elif kind == "bases":
            bill = document({"type": "machine-learning-model", "name": "m", "pedigree": {"ancestors": list(models)}})
        elif kind == "bases of many models":
            bill = document(*(one | {"pedigree": {"ancestors": [{"name": "x"}]}} for one in models))
        elif kind == "digests":
            files = [a_file(f"{number}.bin", "0" * 64) for number in range(n_entries)]
            bill = document(listed("me/tuned", components=files, bases=["owner/base"]))
        elif kind == "parts":
            bill = document(listed("me/tuned", components=[one | ancestor({"name": "x"}) for one in models]))
        else:
            bill = document(*(listed("me/gone", **{"bom-ref": str(number)}) for number in range(n_entries)))
        began_s = time.process_time()
        read = read_bom(bill)
        check = check_bom(read, listeners=QUIET)
        assert str(check) and check.failures(frozenset(Condition)) and json.dumps(check.to_dict())
        if kind in ("models", "bases", "bases of many models"):
            assert result_without_hub(read) == check
        return time.process_time() - began_s

    # A quadratic step takes 64 times as long for 8 times as many entries; the first two terms are for noise.
    few_s = seconds(2_500)
    assert seconds(20_000) < 1.0 + 24 * few_s


def test_only_regular_files_are_read(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main(["verify", "--bom", str(tmp_path / "pipe")]) == 1
    assert "pipe: cannot be read: it is not a regular file" in capsys.readouterr().err
    with pytest.raises(InputError, match="not a regular file"):
        read_bom_file(tmp_path / "pipe")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(InputError, match="is too large: it has 2,147,483,648 bytes"):
        read_bom_file(tmp_path / "large.json")


LONG_FIELDS = {
    "purl": {"purl": "pkg:huggingface/" + 3_300_000 * "%41"},
    "qualifier": {"purl": "pkg:huggingface/owner/base?repository_url=" + 3_300_000 * "%41"},
    "address": {"externalReferences": [{"url": "https://huggingface.co/" + 3_300_000 * "%41"}]},
    "name": {"name": 9_900_000 * "x"},
    "digest": {"hashes": [{"alg": 5_000_000 * "x", "content": 4_900_000 * "0"}]},
}


@pytest.mark.parametrize("field", LONG_FIELDS)
def test_memory_is_bounded_by_the_size_of_the_bill(field):
    content = document({"type": "machine-learning-model", **LONG_FIELDS[field]})
    tracemalloc.start()
    try:
        (model,) = read_bom(content).models
        _, n_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The text is held as characters and as a value, 20 MB, and scanned in parts; percent-decoding it took 800 MB.
    assert n_peak < 60e6 and len(repr(model)) < 10_000


def test_a_long_list_of_bases_is_refused_and_not_cut():
    value = ", ".join(["owner/base"] * 2000)
    with pytest.raises(InputError, match="the limit is 10,000"):
        read_bom(document(listed("me/tuned", properties=[{"name": "base_model", "value": value}])))
