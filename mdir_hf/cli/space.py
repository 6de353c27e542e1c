"""``mdir-hf demo``, and ``mdir-hf space``, which runs the Space on this machine."""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mdir_hf.cli import arguments
from mdir_hf.cli.output import remark, say
from mdir_hf.errors import InputError
from mdir_hf.installing import require_extra

DEMO_FOLDER = Path("demo-out")


def add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``demo`` command."""
    parser = commands.add_parser(
        "demo",
        help="build a small lineage, serve it locally like the Hub, and compare it",
        description="Build a small lineage of models, serve it over loopback like the Hub, and compare its members "
        "with the real client. Needs no network; needs mdir-hf[demo].",
    )
    arguments.add_output(parser, "output folder (default demo-out)")
    parser.set_defaults(run=_run_demo)


def _run_demo(options: argparse.Namespace) -> int:
    from mdir_hf.demo.show import run_demo

    return run_demo(options.output or DEMO_FOLDER)


DEFAULT_PORT = 7860
N_PORTS = 100
"""Number of ports to try, from the default one, if no port is given."""


def add_space(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``space`` command."""
    parser = commands.add_parser(
        "space",
        help="open a page on this machine, with an API and MCP",
        description="Run the Space on this machine: a page with two fields, a verdict and its evidence. "
        "Needs mdir-hf[space].",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default 127.0.0.1: this machine only)")
    parser.add_argument(
        "--port",
        type=int,
        help=f"port; 0 for any free one (default: {DEFAULT_PORT}, or the next free one of {N_PORTS})",
    )
    parser.add_argument("--endpoint", metavar="URL", help="the Hub to read from (default: HF_ENDPOINT)")
    parser.add_argument(
        "--allow-local",
        action="store_true",
        help="also accept folders and files of this machine; only if --host is this machine",
    )
    parser.add_argument(
        "--use-token",
        action="store_true",
        help="read with HF_TOKEN or the saved login, for all visitors; only if --host is this machine",
    )
    parser.add_argument("--limited", action="store_true", help="apply the limits of a Space on small hardware")
    parser.add_argument("--demo", action="store_true", help="also build and serve the small lineage of `mdir-hf demo`")
    arguments.add_output(parser, "folder of the demo (default demo-out)")
    parser.set_defaults(run=_run_space)


def _run_space(options: argparse.Namespace) -> int:
    for flag in ("allow_local", "use_token"):
        if getattr(options, flag) and not _is_this_machine(options.host):
            raise InputError(
                f"--{flag.replace('_', '-')} would let everyone who can reach {options.host} read "
                "files or models that only you may read; leave it out, or use --host 127.0.0.1"
            )
    require_extra("space", "gradio", "matplotlib", purpose="the Space needs gradio and matplotlib")
    options.port = _free_port(options.host, options.port)
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    if options.endpoint:
        os.environ["HF_ENDPOINT"] = options.endpoint
    with _demo_hub(options.output or DEMO_FOLDER) if options.demo else nullcontext(()) as models:
        _serve(options, models)
    return 0


def space_folder() -> Path:
    """Return the folder of the Space's code, in the package or, in a clone, beside it."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_space", package.parent / "space"):
        if (folder / "mdir_space" / "page").is_dir():
            return folder
    raise InputError("this installation of mdir-hf has no Space; reinstall it, or run from a clone")


def _serve(options: argparse.Namespace, named_models: tuple[str, ...]) -> None:
    folder = str(space_folder())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Imported late: the Hub client and gradio read the environment when they are imported.
    modules = ("jobs.service", "page.page", "jobs.limits", "jobs.base_index")
    jobs, page, limits, index = (importlib.import_module(f"mdir_space.{name}") for name in modules)
    service = jobs.Service(
        jobs.ServiceSettings(
            limits=limits.limits_from_environment() if options.limited else limits.Limits(),
            allow_local=options.allow_local,
            own_token=_own_token() if options.use_token else None,
            index=index.index_place(),
            named_models=named_models,
        )
    )
    demo: Any = page.build_page(service)
    try:
        _, url, _ = demo.launch(
            server_port=options.port or None,
            prevent_thread_lock=True,
            **page.launch_options(service, options.host),
        )
    except OSError as exc:  # another program took the port after it was checked
        raise _port_error(options.host, options.port, exc) from exc
    say(f"Open {url} (press Ctrl-C to stop).\n")
    try:
        demo.block_thread()
    finally:
        demo.close(verbose=False)


def _free_port(host: str, port: int | None) -> int:
    """Return the port, if it is free or 0, or without one the first free port from the default."""
    if port is not None:
        if not 0 <= port < 1 << 16:
            raise InputError(f"there is no port {port}; name one from 0 to 65535 with --port")
        try:
            _bind(host, port)
        except OSError as exc:
            raise _port_error(host, port, exc) from exc
        return port
    for candidate in range(DEFAULT_PORT, DEFAULT_PORT + N_PORTS):
        try:
            _bind(host, candidate)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise _port_error(host, candidate, exc) from exc
        else:
            if candidate != DEFAULT_PORT:
                remark(f"port {DEFAULT_PORT} is in use; the page is at port {candidate}\n")
            return candidate
    raise InputError(
        f"ports {DEFAULT_PORT} to {DEFAULT_PORT + N_PORTS - 1} of {host} are in use; choose one with --port"
    )


def _bind(host: str, port: int) -> None:
    socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()


def _port_error(host: str, port: int, exc: OSError) -> InputError:
    if exc.errno == errno.EADDRINUSE:
        return InputError(f"port {port} of {host} is in use; choose another with --port, or leave it out")
    return InputError(f"cannot use port {port} of {host}: {exc}; choose another with --port")


def _own_token() -> str:
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise InputError("--use-token found no token; set HF_TOKEN, or log in with `hf auth login`")
    return token


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _demo_hub(folder: Path) -> Iterator[tuple[str, ...]]:
    from mdir_hf.demo.show import served_lineage

    with served_lineage(folder) as (lineage, _):
        from mdir_hf.lineage.index.building import extend_index

        names = tuple(member.repo for member in lineage.members)
        bases = [member.repo for member in lineage.members if member.relation != "related"]
        place = folder / "bases.safetensors"
        place.unlink(missing_ok=True)  # the models may have been retrained
        extend_index(bases, place, on_model=lambda outcome: None)
        os.environ.setdefault("MDIR_SPACE_INDEX", str(place.resolve()))
        say(f"Models to compare: {', '.join(names)}\n")
        yield names
