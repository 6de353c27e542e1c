"""Response bodies cannot block forever: each read has a deadline for progress and can be cancelled."""

import contextlib
import re
import socket
import threading

import pytest

from mdir_hf.errors import ServerError, ShortReadError
from mdir_hf.model.hub import connection, open_repository
from mdir_hf.model.hub.location import Location
from mdir_hf.model.hub.pull_request import ProposedCommit, open_pull_request
from mdir_hf.model.hub.retry import MOST_STALLS

N_BYTES = 300_000


class Misbehaving:
    """A server that answers every connection in the same way.

    Attributes:
        url: Its address.
        n_connections: Number of connections so far.
        hung_up: Set once a client has closed its connection.
    """

    def __init__(self, answer):
        self.n_connections = 0
        self.hung_up = threading.Event()
        self._answer = answer
        self._is_over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/file"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.n_connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client:
            try:
                asked = re.search(rb"Range: bytes=(\d+)-", client.recv(1 << 16), re.I)
                start = int(asked[1]) if asked else 0
                status = b"206 Partial Content" if asked else b"200 OK"
                head = b"HTTP/1.1 %s\r\nContent-Range: bytes %d-%d/%d\r\n" % (status, start, N_BYTES - 1, N_BYTES)
                self._answer(client.sendall, head, self._is_over)
                self._is_over.wait()
            except OSError:
                self.hung_up.set()

    def close(self):
        self._is_over.set()
        self._listener.close()


def silence(send, head, is_over):
    send(head + b"Content-Length: 5000\r\n\r\n" + b"x" * 10)


def broken_chunks(send, head, is_over):
    send(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"4\r\nabcd\r\nfffffff\r\nonly this")


def no_chunks(send, head, is_over):
    send(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"no length of a chunk\r\n")


def drip(send, head, is_over):
    send(head + b"Content-Length: 5000\r\n\r\n")
    for _ in range(400):
        send(b"x")
        if is_over.wait(0.02):
            return


@pytest.fixture
def impatient(monkeypatch, waits):
    monkeypatch.setenv("MDIR_HF_CACHE_MAX_BYTES", "0")
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.3)
    monkeypatch.setattr(connection, "SLOWEST_S", 0.3)
    return waits


@pytest.fixture
def serving():
    servers = []

    def start(answer):
        servers.append(Misbehaving(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def source(loopback_hub, model_folder):
    """A file, and a function that sets its address."""
    loopback_hub.add_repository("owner/name", model_folder)
    source = open_repository("owner/name").open("model.safetensors")

    def lies_at(url):
        etag = source._locator.current().etag
        source._locator._location = Location(url, etag, N_BYTES, float("inf"))
        return source

    return lies_at


@pytest.mark.parametrize("answer", [silence, broken_chunks, drip])
def test_a_stalled_body_times_out(impatient, serving, source, answer):
    server = serving(answer)
    with pytest.raises(ShortReadError, match=r"brought too little data for too long after [\d,]+ of 300,000"):
        source(server.url).read(0, N_BYTES)
    assert server.n_connections == MOST_STALLS


def test_a_body_without_chunks_is_a_short_read(impatient, serving, source):
    server = serving(no_chunks)
    with pytest.raises(ShortReadError, match=r"broke \(RemoteProtocolError\) after 0 of 300,000"):
        source(server.url).read(0, N_BYTES)
    assert server.n_connections == 6


def test_a_slow_answer_that_makes_progress_is_read(impatient, loopback_hub, model_folder, monkeypatch):
    monkeypatch.setattr(connection, "SLOWEST_BYTES", 1 << 14)
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 5.0)
    loopback_hub.add_repository("owner/name", model_folder)
    source = open_repository("owner/name").open("model.safetensors")
    loopback_hub.network.bytes_per_s = 3e5  # one second in total, three times the deadline
    assert source.read(0, N_BYTES) == (model_folder / "model.safetensors").read_bytes()


def test_a_slow_read_can_be_cancelled(impatient, serving, source, monkeypatch):
    monkeypatch.setattr(connection, "SLOWEST_S", 60.0)
    server = serving(drip)
    opened = source(server.url)
    cancelled, ended = threading.Event(), []

    def read():
        try:
            opened._read((0, N_BYTES), cancelled)
        except ShortReadError as exc:
            ended.append(exc)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    cancelled.set()
    reader.join(20)
    assert "cancelled" in str(ended[0])
    assert server.hung_up.wait(20)
    assert server.n_connections == 1


@pytest.mark.parametrize("answer", [silence, drip])
def test_a_stalled_listing_times_out(impatient, hf_home, serving, monkeypatch, answer):
    server = serving(answer)
    monkeypatch.setenv("HF_ENDPOINT", server.url.removesuffix("/file"))
    with pytest.raises(ServerError, match=r"did not answer in time"):
        open_repository("owner/name")
    assert server.n_connections == MOST_STALLS


@pytest.mark.parametrize("answer", [silence, drip])
def test_a_stalled_list_of_pull_requests_times_out(impatient, hf_home, serving, monkeypatch, answer):
    server = serving(answer)
    monkeypatch.setenv("HF_ENDPOINT", server.url.removesuffix("/file"))
    with pytest.raises(ServerError, match=r"did not answer in time"):
        open_pull_request("owner/name", ProposedCommit({"a": b""}, "", ""), token="hf_x")
    assert server.n_connections == MOST_STALLS
