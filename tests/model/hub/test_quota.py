"""Requests wait for the Hub's next window once it returns 429."""

from mdir_hf.model.hub import open_repository, retry
from tests.loopback.limits import DOCUMENTED


def test_the_documented_limits_match_the_loopback_hub():
    for plan, known in (("anonymous", retry.ANONYMOUS), ("free user", retry.USER)):
        assert known == {bucket: DOCUMENTED[plan][bucket] for bucket in ("api", "resolvers")}


def test_requests_beyond_the_quota_wait_for_the_next_window(loopback_hub, model_folder, monkeypatch):
    now_s = [1000.0]

    def pause(wait_s, cancelled=None):
        now_s[0] += wait_s

    monkeypatch.setattr(retry, "pause", pause)
    loopback_hub.limits.clock = lambda: now_s[0]
    loopback_hub.limits.quotas["anonymous"]["api"] = 20
    loopback_hub.add_repository("owner/name", model_folder)
    for _ in range(50):
        open_repository("owner/name")
    statuses = [request.status for request in loopback_hub.requests]
    assert (statuses.count(200), statuses.count(429)) == (50, 2)
    assert 400 <= now_s[0] - 1000 <= 900  # 20 in each window of 300 s: the third window has begun
