import errno
import multiprocessing
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import pytest

from mdir_hf.errors import InputError
from mdir_hf.model.hub import RepositoryOptions, open_repository, range_cache
from mdir_hf.model.hub.range_cache import RangeCache, content_key
from mdir_hf.own_cache import cache_max_bytes, cache_root

KEY = "ab" * 20
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def cache(tmp_path):
    return RangeCache(tmp_path, max_bytes=1 << 20)


def stored(cache):
    return sorted(path for path in cache.root.rglob("[0-9]*-*") if path.is_file())


def test_kept_ranges_are_readable_by_their_user_alone(cache):
    cache.put(KEY, 100, CONTENT)
    (piece,) = stored(cache)
    modes = [path.stat().st_mode & 0o777 for path in (piece, piece.parent, piece.parent.parent, cache.root)]
    assert modes == [0o600, 0o700, 0o700, 0o700]


def test_ranges_that_meet_or_overlap_are_joined(cache):
    cache.put(KEY, 0, CONTENT[:1000])
    cache.put(KEY, 1000, CONTENT[1000:2000])
    cache.put(KEY, 1500, CONTENT[1500:5000])
    assert cache.get(KEY, 10, 4999) == CONTENT[10:4999]
    cache.put(KEY, 6000, CONTENT[6000:7000])
    assert cache.get(KEY, 10, 6500) is None


def test_long_ranges_are_kept_in_pieces(cache, monkeypatch):
    monkeypatch.setattr(range_cache, "PIECE_BYTES", 1000)
    cache.put(KEY, 7, CONTENT)
    assert len(stored(cache)) == 11
    assert cache.get(KEY, 7, 7 + len(CONTENT)) == CONTENT
    assert cache.get(KEY, 2500, 2600) == CONTENT[2493:2593]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"X" + content[1:],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content + b"more",
    ],
    ids=["cut by one", "cut in half", "empty", "first byte", "last byte", "longer"],
)
def test_a_damaged_piece_is_not_served_and_goes_away(cache, damage):
    cache.put(KEY, 0, CONTENT)
    (piece,) = stored(cache)
    piece.write_bytes(damage(piece.read_bytes()))
    assert cache.get(KEY, 0, 10) is None
    assert stored(cache) == []
    cache.put(KEY, 0, CONTENT)
    assert cache.get(KEY, 0, 10) == CONTENT[:10]


def test_a_piece_that_vanished_is_not_served(cache):
    cache.put(KEY, 0, CONTENT)
    stored(cache)[0].unlink()
    assert cache.get(KEY, 0, 10) is None


def test_its_size_is_bounded_and_the_oldest_goes_first(tmp_path):
    cache = RangeCache(tmp_path, max_bytes=100_000)
    for number in range(9):
        cache.put(KEY, number * 20_000, bytes([number]) * 10_000)
        os.utime(stored(cache)[-1], (1000 + number, 1000 + number)) if number else None
    for path in stored(cache):
        number = int(path.name.split("-")[0]) // 20_000
        os.utime(path, (1000 + number, 1000 + number))
    assert cache.get(KEY, 0, 10) is not None  # number 0 was just used, so number 1 is the oldest
    cache.put(KEY, 500_000, b"x" * 15_000)
    assert sum(path.stat().st_size for path in stored(cache)) <= 100_000
    left = {int(path.name.split("-")[0]) for path in stored(cache)}
    assert {0, 500_000} <= left
    assert 20_000 not in left


def test_ranges_kept_by_other_processes_count_too(tmp_path):
    first, second = (RangeCache(tmp_path, max_bytes=50_000) for _ in range(2))
    for number in range(20):
        (first, second)[number % 2].put(KEY, number * 20_000, bytes([number]) * 5_000)
    # Between two scans of the disk, each may write an eighth of the bound and one piece that the other has not seen.
    assert sum(path.stat().st_size for path in stored(first)) <= 50_000 + 2 * (50_000 // 8 + 5_024)


def kept_bytes(cache):
    return sum(path.stat().st_size for path in stored(cache))


def test_the_disk_is_counted_again_after_an_eighth_of_the_bound(tmp_path):
    first, second = (RangeCache(tmp_path, max_bytes=80_000) for _ in range(2))

    def put(cache, number):
        cache.put(KEY, number * 20_000, bytes([number]) * 4_976)  # 5,000 including its trailer

    put(first, 0)
    for number in range(1, 16):
        put(second, number)
    assert kept_bytes(first) == 80_000  # a full cache does not exceed the bound
    put(first, 16)  # 10,000 bytes of its own since the last scan, exactly an eighth
    assert kept_bytes(first) == 85_000
    put(first, 17)  # now it scans the disk and shrinks to nine tenths
    assert kept_bytes(first) == 70_000


def test_the_ranges_of_one_process_never_exceed_the_bound(tmp_path):
    cache = RangeCache(tmp_path, max_bytes=80_000)
    for number in range(8):
        cache.put(KEY, number * 20_000, bytes([number]) * 9_976)
    assert kept_bytes(cache) == 80_000
    cache.put(KEY, 8 * 20_000, bytes(9_976))
    assert kept_bytes(cache) == 70_000


def test_trailers_count(tmp_path):
    cache = RangeCache(tmp_path, max_bytes=8 * 10_024 - 24)
    for number in range(8):
        cache.put(KEY, number * 20_000, bytes([number]) * 10_000)
    assert kept_bytes(cache) == 7 * 10_024


def test_one_huge_read_does_not_push_out_the_others(tmp_path):
    cache = RangeCache(tmp_path, max_bytes=40_000)
    cache.put(KEY, 0, b"a" * 5_000)
    cache.put(KEY, 100_000, b"b" * 20_000)
    assert cache.get(KEY, 0, 5_000) == b"a" * 5_000
    assert cache.get(KEY, 100_000, 100_001) is None


def test_a_quarter_of_the_bound_is_kept_and_a_byte_more_is_not(tmp_path):
    cache = RangeCache(tmp_path, max_bytes=4000)
    cache.put(KEY, 0, CONTENT[:1001])
    assert cache.get(KEY, 0, 1001) is None
    cache.put(KEY, 0, CONTENT[:1000])
    assert cache.get(KEY, 0, 1000) == CONTENT[:1000]


def test_requests_for_a_range_being_fetched_wait(cache):
    """Latecomers wait too, and no waiter is left registered afterwards."""
    inside, order = threading.Semaphore(0), []
    goes_on = {name: threading.Event() for name in "abc"}

    def fetch(name):
        with cache.alone(KEY, 0, 10):
            order.append(name)
            inside.release()
            assert goes_on[name].wait(30)

    def waits_for(n_wanting):
        until = time.monotonic() + 30
        while cache._wanted[KEY, 0, 10].n != n_wanting and time.monotonic() < until:
            time.sleep(0.001)
        assert cache._wanted[KEY, 0, 10].n == n_wanting

    threads = {name: threading.Thread(target=fetch, args=name, daemon=True) for name in "abc"}
    threads["a"].start()
    assert inside.acquire(timeout=30)
    threads["b"].start()
    waits_for(2)
    goes_on["a"].set()
    assert inside.acquire(timeout=30)
    threads["c"].start()
    waits_for(2)
    assert order == ["a", "b"]
    with cache.alone(KEY, 10, 20):
        order.append("another range")
    for name in "bc":
        goes_on[name].set()
    for thread in threads.values():
        thread.join(30)
    assert order == ["a", "b", "another range", "c"]
    assert cache._wanted == {}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_an_unwritable_disk_turns_the_cache_off(cache, monkeypatch, number):
    cache.put(KEY, 0, CONTENT)

    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    cache.put(KEY, 50_000, CONTENT)
    assert not cache.is_writable
    assert cache.get(KEY, 0, 10) == CONTENT[:10]
    assert cache.get(KEY, 50_000, 50_001) is None


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing_behind(cache, monkeypatch):
    class FullFile:
        """A file on a disk that becomes full after the first bytes."""

        def __init__(self, descriptor, mode):
            self.file = os.fdopen(descriptor, mode)

        def __enter__(self):
            return self

        def __exit__(self, *args):
            self.file.close()

        def write(self, content):
            self.file.write(content[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    fdopen = os.fdopen
    fake = type("fake_os", (), {**{n: getattr(os, n) for n in dir(os)}, "fdopen": staticmethod(FullFile)})
    monkeypatch.setattr(range_cache, "os", fake)
    cache.put(KEY, 0, CONTENT)
    assert os.fdopen is fdopen
    assert [path for path in cache.root.rglob("*") if path.is_file()] == []
    assert not cache.is_writable


def test_an_invalid_folder_turns_the_cache_off(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = RangeCache(tmp_path / "file", max_bytes=1 << 20)
    assert cache.get(KEY, 0, 10) is None
    cache.put(KEY, 0, CONTENT)
    assert not cache.is_writable


def test_temporary_files_of_killed_processes_are_swept(tmp_path):
    root = tmp_path / "ranges"
    root.mkdir()
    stray, fresh = root / "tmp-stray", root / "tmp-fresh"
    for path in (stray, fresh):
        path.write_bytes(b"x" * 100)
    long_ago = time.time() - 7200
    os.utime(stray, (long_ago, long_ago))
    RangeCache(tmp_path, max_bytes=1 << 20).put(KEY, 0, CONTENT)
    assert not stray.exists()
    assert fresh.exists()  # another process may be writing it


def _write_for_ever(root, begun):
    cache = RangeCache(root, max_bytes=1 << 30)
    number = 0
    while True:
        cache.put(KEY, number * 200_000, bytes([number % 256]) * 200_000)
        number += 1
        begun.set()


def test_a_killed_writer_leaves_only_whole_pieces(tmp_path):
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=_write_for_ever, args=(tmp_path, begun))
    process.start()
    assert begun.wait(60)
    time.sleep(0.05)
    process.kill()
    process.join()
    cache = RangeCache(tmp_path, max_bytes=1 << 30)
    pieces = stored(cache)
    assert pieces
    for path in pieces:
        start, stop = map(int, path.name.split("-"))
        assert cache.get(KEY, start, stop) == bytes([start // 200_000 % 256]) * 200_000


def test_several_processes_may_write_the_same_pieces(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from mdir_hf.model.hub.range_cache import RangeCache
        cache = RangeCache(Path(sys.argv[1]), max_bytes=60_000)
        for number in range(200):
            start = number % 10 * 20_000
            cache.put("ab" * 20, start, bytes([number % 10]) * 10_000)
            got = cache.get("ab" * 20, start, start + 10_000)
            assert got in (None, bytes([number % 10]) * 10_000)
        assert cache.is_writable
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]


def test_the_place_is_read_from_the_environment_when_it_is_needed(hf_home, tmp_path, monkeypatch):
    assert cache_root() == hf_home / "mdir-hf"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / "mdir-hf"
    monkeypatch.delenv("HF_HOME")
    assert cache_root() == hf_home / "mdir-hf"
    monkeypatch.setenv("MDIR_HF_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"


@pytest.mark.parametrize("text", ["4GiB", "-1", "1e9", "9" * 20])
def test_an_invalid_cache_bound_is_refused(monkeypatch, text):
    monkeypatch.setenv("MDIR_HF_CACHE_MAX_BYTES", text)
    with pytest.raises(InputError, match="expected a whole number of bytes"):
        cache_max_bytes()


def test_content_with_a_digest_is_shared_on_one_hub():
    same = {"endpoint": "https://huggingface.co", "etag": "0" * 64}
    first = content_key(**same, repo="a/b", commit="1", path="x")
    assert first == content_key(**same, repo="c/d", commit="2", path="y")
    assert first != content_key(endpoint="https://mirror.example", etag="0" * 64, repo="a/b", commit="1", path="x")


@pytest.mark.parametrize("etag", [None, "weak-etag", "W/abc", "../../etc"])
def test_content_without_a_digest_is_keyed_by_commit_and_file(etag):
    keys = {
        content_key(endpoint="e", etag=etag, repo=repo, commit=commit, path=path)
        for repo in ("a/b", "c/d")
        for commit in ("1", "2")
        for path in ("x", "y")
    }
    assert len(keys) == 8
    assert all(len(key) == 40 and key.isalnum() for key in keys)


# Caching of Hub files.


def test_the_same_file_at_another_commit_has_the_same_ranges(loopback_hub, model_folder, tmp_path):
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "model.safetensors").write_bytes(b"changed" * 10_000)
    loopback_hub.add_repository("owner/name", model_folder, revisions={"v2": changed})
    loopback_hub.add_repository("owner/copy", model_folder)
    open_repository("owner/name").open("model.safetensors").read(0, 70)
    copy = open_repository("owner/copy")
    copy.open("model.safetensors").read(0, 70)
    assert copy.ledger.bytes_from_cache == 70
    assert open_repository("owner/name@v2").open("model.safetensors").read(0, 70) == b"changed" * 10


def test_force_download_ignores_and_renews_the_cache(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/name", model_folder)
    open_repository("owner/name").open("model.safetensors").read(0, 100)
    forced = open_repository("owner/name", RepositoryOptions(force_download=True))
    forced.open("model.safetensors").read(0, 100)
    assert forced.ledger.bytes_read == 100


def test_force_download_heals_a_wrong_range_of_weights(loopback_hub, model_folder):
    honest = (model_folder / "model.safetensors").read_bytes()
    loopback_hub.add_repository("owner/name", model_folder)
    wrong = bytes(len(honest))
    (model_folder / "model.safetensors").write_bytes(wrong)  # correct headers and listing, but different bytes
    lied_to = open_repository("owner/name")
    assert lied_to.files["model.safetensors"].sha256
    assert lied_to.open("model.safetensors").read(0, 9000) == wrong[:9000]
    (model_folder / "model.safetensors").write_bytes(honest)
    forced = open_repository("owner/name", RepositoryOptions(force_download=True)).open("model.safetensors")
    assert forced.read(1000, 2000) == honest[1000:2000]  # inside the wrong range, which is discarded as a whole
    assert open_repository("owner/name").open("model.safetensors").read(0, 9000) == honest[:9000]
