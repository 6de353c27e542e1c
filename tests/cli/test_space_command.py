"""``mdir-hf space``: what it refuses, and that it serves."""

import contextlib
import socket
import sys

import pytest

from mdir_hf.cli import main
from mdir_hf.cli.space import space_folder
from mdir_hf.installing import install_command
from tests.model.hub.fixtures import hf_home

__all__ = ["hf_home"]


@pytest.mark.parametrize("flag", ["--allow-local", "--use-token"])
@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "models.example"])
def test_private_models_of_the_owner_are_not_served_to_a_network(flag, host, capsys):
    assert main(["space", flag, "--host", host]) == 1
    assert f"{flag} would let everyone who can reach" in capsys.readouterr().err


def test_a_missing_token_is_requested(hf_home, capsys):
    assert main(["space", "--use-token", "--port", "0"]) == 1
    assert "found no token" in capsys.readouterr().err


def test_without_gradio_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["space"]) == 1
    assert install_command("space") in capsys.readouterr().err


def test_the_code_of_the_space_is_found_beside_the_package():
    assert (space_folder() / "app.py").is_file()
    assert (space_folder() / "examples" / "index.json").is_file()


@pytest.mark.slow
class TestServing:
    def test_a_port_that_is_taken_is_named(self, tmp_path):
        from tests.space.servers import running

        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            arguments = ["-m", "mdir_hf", "space", "--port", port]
            with running(arguments, {}, tmp_path, says=f"error: cannot use port {port}") as server:
                assert server.process.wait(30) == 1

    def test_folders_of_this_machine_are_compared_if_that_is_allowed(self, tmp_path):
        from gradio_client import Client

        from tests.space.servers import running_command
        from tests.specimens import gaussian, write_model

        one = write_model(tmp_path / "one", gaussian(1500, 96, 0))
        other = write_model(tmp_path / "other", gaussian(1500, 96, 0) + 0.3 * gaussian(1500, 96, 1))
        with (
            running_command(["--allow-local"], {}, tmp_path) as server,
            contextlib.closing(Client(server.url, verbose=False)) as client,
        ):
            report = client.predict(str(one), str(other), api_name="/compare")
        assert report["verdict"] == "homologous"
        assert report["reference"]["commit"] is None

    def test_the_owners_token_reads_for_the_owner_if_requested(self, tmp_path):
        from gradio_client import Client

        from tests.loopback.hub import FullHub
        from tests.space.models import BASE, GATED, add_models
        from tests.space.servers import running_command

        with FullHub() as hub:
            add_models(hub, tmp_path / "models")
            environment = {"HF_TOKEN": hub.token}
            options = ["--use-token", "--endpoint", hub.endpoint]
            with (
                running_command(options, environment, tmp_path) as server,
                contextlib.closing(Client(server.url, verbose=False)) as client,
            ):
                assert client.predict(BASE, GATED, api_name="/compare")["verdict"] == "homologous"
