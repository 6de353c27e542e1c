from collections import Counter

import pytest

from benchmarks.leafbench.suites import SUITES, leafbench, paper, provenance_kit


def test_leafbench_has_its_845_pairs_of_which_123_are_related():
    suite = leafbench()
    assert len(suite.pairs) == 845
    assert sum(pair.related for pair in suite.pairs) == 123
    assert len(suite.models) == 65
    assert len({pair.reference for pair in suite.pairs}) == 13
    assert sum(pair.reference == pair.candidate for pair in suite.pairs) == 13


def test_the_kit_has_its_111_pairs_labels_as_published():
    suite = provenance_kit()
    assert Counter(pair.related for pair in suite.pairs) == {True: 55, False: 56}
    disputed = [pair for pair in suite.pairs if pair.related and pair.relation == "none"]
    assert ("EleutherAI/pythia-1.4b", "EleutherAI/pythia-1.4b-deduped") in {
        (pair.reference, pair.candidate) for pair in disputed
    }


def test_the_paper_has_every_pair_and_says_which_are_unclear():
    suite = paper()
    assert len(suite.models) == 24
    assert len(suite.pairs) == 24 * 23 // 2
    labels = {(pair.reference, pair.candidate): pair.related for pair in suite.pairs}
    assert labels["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B"] is True
    assert labels["Qwen/Qwen2-7B", "Qwen/Qwen2.5-7B"] is None
    assert labels["moonshotai/Moonlight-16B-A3B", "moonshotai/Kimi-K2-Instruct"] is False
    assert all(label is None for pair, label in labels.items() if any("pangu" in name for name in pair))


@pytest.mark.parametrize("name", sorted(SUITES))
def test_shards_share_the_pairs_and_lose_none(name):
    suite = SUITES[name]()
    parts = [suite.part((at, 4)) for at in range(4)]
    assert sorted(map(str, (pair for part in parts for pair in part))) == sorted(map(str, suite.pairs))
    references = [{pair.reference for pair in part} for part in parts]
    assert sum(map(len, references)) == len(set().union(*references))
