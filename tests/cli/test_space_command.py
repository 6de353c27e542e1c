"""``mdir-hf space`` serves the page and refuses invalid options."""

import contextlib
import socket
import sys

import pytest

from mdir_hf.cli import main
from mdir_hf.cli.space import space_folder
from mdir_hf.installing import install_command


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


def test_a_given_port_that_is_taken_is_an_error_before_the_page_is_built(capsys, monkeypatch):
    monkeypatch.setattr("mdir_hf.cli.space._serve", lambda options, models: pytest.fail("the page was built"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["space", "--port", str(port)]) == 1
    assert f"error: port {port} of 127.0.0.1 is in use; choose another with --port" in capsys.readouterr().err


def test_a_port_that_does_not_exist_is_an_error(capsys):
    assert main(["space", "--port", "70000"]) == 1
    assert "error: there is no port 70000" in capsys.readouterr().err


@pytest.fixture
def two_ports(monkeypatch):
    """Two neighbouring ports, the first of them taken; the page would be served at the ports that are listed."""
    served = []
    monkeypatch.setattr("mdir_hf.cli.space._serve", lambda options, models: served.append(options.port))
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)  # restored after the test: the command sets it
    while True:
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with taken:
            if port < 65535 and is_free(port + 1):
                monkeypatch.setattr("mdir_hf.cli.space.DEFAULT_PORT", port)
                yield port, served
                return


def is_free(port):
    """Return whether a port of this machine can be bound."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_the_next_free_port_is_taken_and_printed(two_ports, capsys):
    port, served = two_ports
    assert main(["space"]) == 0
    assert served == [port + 1]
    assert f"port {port} is in use; the page is at port {port + 1}" in capsys.readouterr().err


def test_without_a_free_port_it_says_so(two_ports, monkeypatch, capsys):
    port, served = two_ports
    monkeypatch.setattr("mdir_hf.cli.space.N_PORTS", 1)
    assert main(["space"]) == 1
    assert served == [] and f"ports {port} to {port} of 127.0.0.1 are in use" in capsys.readouterr().err


@pytest.mark.slow
def test_folders_and_gated_models_are_compared_if_the_owner_allows_it(tmp_path):
    from gradio_client import Client

    from tests.loopback.hub import FullHub
    from tests.space.models import BASE, GATED, add_models, write_models
    from tests.space.servers import running_command
    from tests.specimens import gaussian, write_model

    base = write_model(tmp_path / "base", gaussian(1500, 96, 0))
    relative = write_model(tmp_path / "relative", gaussian(1500, 96, 0) + 0.3 * gaussian(1500, 96, 1))
    with FullHub() as hub:
        add_models(hub, write_models(tmp_path / "models"))
        options = ["--allow-local", "--use-token", "--endpoint", hub.endpoint]
        with (
            running_command(options, {"HF_TOKEN": hub.token}, tmp_path) as server,
            contextlib.closing(Client(server.url, verbose=False)) as client,
        ):
            report = client.predict(str(base), str(relative), api_name="/compare")
            assert (report["verdict"], report["reference"]["commit"]) == ("homologous", None)
            assert client.predict(BASE, GATED, api_name="/compare")["verdict"] == "homologous"
