"""SmolLM2-135M-Instruct, if its package is available: its relatives are found and strangers are not."""

import pytest

from benchmarks.real.judging import judge
from benchmarks.real.pairs import pair
from benchmarks.real.workshop import SMALL, Model, built
from benchmarks.runner import UnavailableError
from tests.benchmarks.evidence import WITH_THE_SCRIPTS

pytestmark = [pytest.mark.slow, WITH_THE_SCRIPTS]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """The existing cache, or a separate one for these tests; about 1.5 GB."""
    import os

    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("MDIR_HF_REAL_CACHE"):
            patch.setenv("MDIR_HF_REAL_CACHE", str(tmp_path_factory.mktemp("real")))
        patch.setattr("transformers.utils.logging._tqdm_active", False)
        try:
            built(Model(SMALL))
        except UnavailableError as exc:
            pytest.skip(f"no real model available: {exc}")
        yield


@pytest.mark.parametrize("member", ["signed", "noise-3", "half-width"])
def test_a_real_models_relative_is_found_at_a_glance(member):
    row = judge(pair(Model(SMALL), Model(SMALL, member)))
    assert row["verdict"] == "homologous"
    # In each of two layers at least 48 of 64 neurons have their own number: 1 / 48! is below 10^-60.
    assert row["log10_p"] < -100
    # Rows and columns of 160 neurons in a few layers; small local files are read across gaps.
    assert row["bytes_read"] < 0.15 * row["bytes_of_weights"]


def test_a_real_model_with_new_embeddings_is_found_by_neurons():
    row = judge(pair(Model(SMALL), Model(SMALL, "new-embeddings-permuted")))
    assert row["verdict"] == "homologous"
    assert (row["settled_by"], row["neurons"]["n_matched"]) == ("neurons", 4)


def test_a_model_of_the_same_shape_is_a_stranger():
    row = judge(pair(Model(SMALL), Model(SMALL, "random")))
    assert row["verdict"] == "no_evidence"
    assert row["log10_p"] == 0.0
