"""Every peer on cases whose result follows from its description."""

import math

import pytest

from benchmarks.peers import PEERS
from benchmarks.peers.awm import Awm
from benchmarks.peers.gradient import LeafBenchGradient, TensorGuard
from benchmarks.peers.huref import HuRef
from benchmarks.peers.model_tracing import Csu, Match
from benchmarks.peers.pdf import Pdf
from benchmarks.peers.plain_mdir import PlainMdir
from benchmarks.peers.provenance_kit import ProvenanceKit, ProvenanceKitSignals
from benchmarks.peers.reef import Reef
from benchmarks.peers.seedprints import SeedPrints
from tests.benchmarks.evidence import WITH_THE_SCRIPTS

pytestmark = [pytest.mark.slow, WITH_THE_SCRIPTS]

OWN = (
    PlainMdir(),
    HuRef(),
    Reef(),
    Pdf(),
    LeafBenchGradient(),
    TensorGuard(),
    SeedPrints(),
    Awm(),
    Csu(),
    Match(),
    ProvenanceKit(),
    ProvenanceKitSignals(),
)
BEST = {
    "MDIR, as printed": None,
    "TensorGuard": 0.0,
    "SeedPrints": None,
    "model-tracing CSU": None,
    "model-tracing MATCH": None,
}


def names(peer):
    return peer.name


def test_every_peer_has_a_name_of_its_own_and_a_source():
    assert len({peer.name for peer in PEERS}) == len(PEERS) >= len(OWN)
    assert all(peer.source for peer in PEERS)


@pytest.mark.parametrize("peer", OWN, ids=names)
def test_a_copy_scores_the_most_that_there_is(peer, ask):
    found = ask(peer, "copy")
    best = BEST.get(peer.name, 1.0)
    if best is None:
        assert found.score == pytest.approx(-found.log10_p)
        assert found.score > 10
    else:
        assert found.score == pytest.approx(best, abs=1e-6)
        assert found.log10_p is None


@pytest.mark.parametrize("peer", OWN, ids=names)
def test_a_copy_with_little_noise_scores_more_than_a_stranger(peer, ask):
    noisy, stranger = ask(peer, "noisy"), ask(peer, "stranger")
    if isinstance(peer, (ProvenanceKit, LeafBenchGradient)) and type(peer) is not ProvenanceKitSignals:
        # Equal configs pass the kit's gate, and the Gradient's 14 numbers only describe untrained models of one size,
        # so neither can distinguish these models.
        assert stranger.score > 0.99
    else:
        assert noisy.score > stranger.score


@pytest.mark.parametrize("peer", OWN, ids=names)
def test_both_orders_give_one_score(peer, ask):
    there, back = ask(peer, "noisy"), ask(peer, "base", other="noisy")
    assert there.score == pytest.approx(back.score, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("peer", OWN, ids=names)
def test_a_folder_without_a_model_gives_a_reason_and_no_score(peer, ask):
    found = ask(peer, "empty")
    assert found.score is None
    assert found.reason


@pytest.mark.parametrize("peer", OWN, ids=names)
def test_other_sizes_and_tokenizers_give_a_score_or_a_reason(peer, ask):
    for name in ("narrow", "deep", "other-tokenizer"):
        found = ask(peer, name)
        assert (found.score is None and found.reason) or math.isfinite(found.score)


@pytest.mark.parametrize("peer", [HuRef(), Reef(), Pdf(), Awm(), Match()], ids=names)
def test_reordered_channels_do_not_matter_to_peers_that_say_so(peer, ask):
    copied, permuted = ask(peer, "copy"), ask(peer, "permuted")
    assert permuted.score == pytest.approx(copied.score, rel=1e-3)


@pytest.mark.parametrize("peer", [Reef(), Pdf(), Match()], ids=names)
def test_a_rotation_does_not_matter_to_invariant_peers(peer, ask):
    # Gains of an untrained model are 1, so folding them in changes nothing.
    copied, rotated = ask(peer, "copy"), ask(peer, "rotated")
    assert rotated.score == pytest.approx(copied.score, rel=1e-3, abs=1e-3)


def test_a_rotation_leaves_four_of_the_six_terms_of_huref(ask):
    # Its MLP term multiplies gate and up input by input, which is meaningless in another basis.
    assert ask(HuRef(), "rotated").score == pytest.approx(4 / 6, abs=0.05)


def test_a_rotation_hides_a_copy_from_awm(ask):
    assert ask(Awm(), "rotated").score < 0.2


def test_reordered_neurons_hide_a_copy_from_csu_and_not_from_match(ask):
    assert ask(Csu(), "neurons").log10_p > -3
    assert ask(Match(), "neurons").log10_p == pytest.approx(ask(Match(), "copy").log10_p)


def test_reordered_channels_hide_a_copy_from_csu_and_from_seedprints(ask):
    assert ask(Csu(), "permuted").log10_p > -3
    assert ask(SeedPrints(), "permuted").log10_p > ask(SeedPrints(), "copy").log10_p / 2


@pytest.mark.parametrize("peer", [Csu(), Match()], ids=names)
def test_strangers_are_not_significant_if_order_is_tested(peer, ask):
    assert ask(peer, "stranger").log10_p > -3


def test_awm_and_huref_are_about_zero_on_strangers(ask):
    assert abs(ask(Awm(), "stranger").score) < 0.1
    assert abs(ask(HuRef(), "stranger").score) < 0.1


def test_the_kits_gate_calls_strangers_of_one_config_the_same(ask):
    assert ask(ProvenanceKit(), "stranger").score == 1.0
    assert ask(ProvenanceKitSignals(), "stranger").score < 0.75
    assert ask(ProvenanceKit(), "narrow").score == ask(ProvenanceKitSignals(), "narrow").score


@pytest.mark.parametrize("peer", [HuRef(), Reef(), Awm(), Match()], ids=names)
def test_quantised_weights_are_read_as_the_numbers_they_mean(peer, ask):
    quantised, stranger = ask(peer, "int4"), ask(peer, "stranger")
    assert quantised.score > 0.9 > 0.1 + abs(stranger.score) or quantised.score > 100 + stranger.score


def test_another_tokenizer_is_a_reason_for_match(ask):
    assert "tokenizer" in ask(Match(), "other-tokenizer").reason


def test_match_maps_layers_of_another_depth(ask):
    assert ask(Match(), "deep").log10_p > -3


def test_csu_refuses_other_shapes(ask):
    assert "shapes" in ask(Csu(), "narrow").reason
