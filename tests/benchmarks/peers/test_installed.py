import os
import sys

import pytest

from benchmarks.peers.installed import VARIABLE, InstalledPeer, installed_peers

needs_packages = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter")


def test_without_an_environment_there_are_no_packages(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert installed_peers() == ()


def test_an_environment_without_the_package_is_a_reason(tmp_path):
    peer = InstalledPeer("no-such-package", "nobody", "nowhere", 0.5, sys.executable)
    found = peer.score(peer.fingerprint(tmp_path), peer.fingerprint(tmp_path))
    assert found.score is None
    assert "ended with status 1" in found.reason


@needs_packages
def test_the_kits_package_calls_strangers_of_one_config_the_same(models):
    kit = installed_peers()[0]
    scores = [
        kit.score(kit.fingerprint(models["base"]), kit.fingerprint(models[name])) for name in ("copy", "stranger")
    ]
    assert [found.score for found in scores] == [1.0, 1.0]


@needs_packages
def test_weightscope_counts_unchanged_weights(models):
    scope = installed_peers()[1]
    copied, stranger, deep = (
        scope.score(scope.fingerprint(models["base"]), scope.fingerprint(models[name]))
        for name in ("copy", "stranger", "deep")
    )
    assert copied.score == 1.0
    assert stranger.score < scope.threshold
    assert deep.score is None
    assert "architecture" in deep.reason
