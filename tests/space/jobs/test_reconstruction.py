"""Reconstructions: the job, its refusals, and the archives that the server holds."""

import io
import zipfile
from contextlib import aclosing
from dataclasses import replace

import pytest
import torch

from mdir_hf import load_reconstruction
from mdir_hf.comparison.progress import Progress
from mdir_hf.errors import ReconstructionError
from mdir_space.html.notices import in_words
from mdir_space.jobs import reconstruction
from mdir_space.jobs.limits import Limits
from mdir_space.jobs.progress import TotalProgress
from mdir_space.jobs.question import PairQuestion, ReconstructionQuestion, RefusedError
from mdir_space.jobs.reconstruction import Downloads, ReconstructionJob, ReconstructionResult
from mdir_space.jobs.service import Answered, Running, Service, ServiceSettings
from mdir_space.jobs.visitor import Visitor
from tests.space.coroutines import finish
from tests.space.models import BASE, DEEP, DEEP_MOVED, GATED, STRANGER, deep_orders

ANYBODY = Visitor("address 1.2.3.4")


@pytest.fixture
def service(hub):
    return Service(ServiceSettings())


async def steps_of(service, question, visitor):
    async with aclosing(service.answer(question, visitor)) as steps:
        return [step async for step in steps]


def steps(service, question, visitor=ANYBODY):
    return finish(steps_of(service, question, visitor))


def unpacked(archive, folder):
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(folder)
    return load_reconstruction(folder)


def test_the_held_files_have_the_order_of_channels_heads_and_neurons(service, tmp_path):
    all_steps = steps(service, ReconstructionQuestion(DEEP, DEEP_MOVED))
    result = all_steps[-1].result
    assert isinstance(all_steps[-1], Answered) and result.archive == b""
    archive = service.downloads.get(result.name)
    assert len(archive) == result.n_bytes
    found = unpacked(archive, tmp_path)

    channels, heads, neurons = deep_orders()
    outer = found.stream.outer
    assert outer.kind == "permutation"
    assert torch.equal(outer.reference[torch.argsort(outer.candidate)], channels)
    assert found.layer_map == tuple((layer, layer) for layer in range(4))
    for layer in found.layers:
        assert max(layer.residuals.values()) < 1e-6
        attention, mlp = layer.attention, layer.mlp.neurons
        assert attention.kv_reference[attention.kv_candidate.argsort()].tolist() == heads.tolist()
        assert mlp.reference[mlp.candidate.argsort()].tolist() == neurons.tolist()
    assert "residual channels are reordered" in result.lines[0]


def test_a_kept_comparison_is_not_computed_again(service):
    steps(service, PairQuestion(DEEP, DEEP_MOVED))
    later = steps(service, ReconstructionQuestion(DEEP, DEEP_MOVED))
    assert all(step.plan is None for step in later if isinstance(step, Running))
    assert later[-1].result.lines
    assert not later[-1].is_kept


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((BASE, STRANGER), "The verdict for owner/base and owner/stranger is no_evidence"),
        ((BASE, BASE), "are the same, so there is no transformation"),
        ((BASE, GATED), "is gated"),
    ],
)
def test_a_pair_without_a_transformation_is_refused_with_the_reason(service, pair, message):
    with pytest.raises(RefusedError, match=message):
        steps(service, ReconstructionQuestion(*pair))


def test_limits_refuse_with_a_command_to_run_locally(hub):
    service = Service(ServiceSettings(Limits(n_bytes=600_000)))
    with pytest.raises(RefusedError, match=r"The (reconstruction|comparison) would exceed the limit of bytes") as told:
        steps(service, ReconstructionQuestion(DEEP, DEEP_MOVED))
    assert told.value.runs_locally and "lighter level" not in told.value.message


def test_the_progress_counts_the_layers(service):
    question = ReconstructionQuestion(DEEP, DEEP_MOVED)
    access = finish(service.access(question, ANYBODY))
    events, total = [], TotalProgress()
    ReconstructionJob(access=access, question=question).run(events.append)
    layers = [event for event in events if isinstance(event, Progress) and event.stage == reconstruction.STAGE]
    assert layers[0].n_parts == 4
    total.update(replace(layers[0], n_done=3))
    assert total.share == 0.75
    assert in_words(Running(None, replace(layers[0], n_done=3), 1.0)) == "Reconstructing the layers: layer 4 of 4."


def test_a_large_archive_is_refused(hub, monkeypatch):
    service = Service(ServiceSettings())
    question = ReconstructionQuestion(DEEP, DEEP_MOVED)
    access = finish(service.access(question, ANYBODY))
    monkeypatch.setattr(reconstruction, "MAX_DOWNLOAD_BYTES", 100)
    with pytest.raises(ReconstructionError, match="offers at most 100"):
        ReconstructionJob(access=access, question=question).run(lambda event: None)


def test_a_private_reconstruction_has_its_own_name(service, hub):
    reader = Visitor("account reader", hub.token)
    first, second = (steps(service, ReconstructionQuestion(BASE, GATED), reader)[-1].result for _ in range(2))
    assert first.name != second.name and len(first.name) >= 32
    assert service.downloads.get("") is None


def result_of(archive):
    return ReconstructionResult("a", "b", (), {}, len(archive), archive)


def test_archives_are_held_for_some_minutes_and_up_to_a_total_size():
    now = 0.0
    downloads = Downloads(most_bytes=100, seconds=60, clock=lambda: now)
    first, second = (downloads.hold(result_of(content)).name for content in (b"x" * 60, b"y" * 40))
    assert (downloads.get(first), downloads.get(second)) == (b"x" * 60, b"y" * 40)
    third = downloads.hold(result_of(b"z")).name
    assert (downloads.get(first), downloads.get(second), downloads.get(third)) == (None, b"y" * 40, b"z")
    now = 60.0
    assert downloads.get(second) is None and downloads.get(third) is None
    assert not downloads._archives
