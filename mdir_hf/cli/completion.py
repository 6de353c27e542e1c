"""``mdir-hf completion SHELL``: shell completion for commands, options, their values and recently read models."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from mdir_hf.cli.output import say
from mdir_hf.cli.parser import commands_of
from mdir_hf.own_cache import cache_max_bytes, cache_root

MOST_NAMES = 500
_LONGEST_FILE = MOST_NAMES * 200


def seen_models() -> tuple[str, ...]:
    """Return the names of recently read models, most recent last."""
    with contextlib.suppress(OSError, UnicodeDecodeError), _place().open(encoding="utf-8") as file:
        return tuple(name for name in file.read(_LONGEST_FILE).splitlines() if name.isprintable())
    return ()


def remember_models(names: Iterable[str]) -> None:
    """Store the names of Hub models for completion, ignoring failures."""
    from mdir_hf.errors import MdirError
    from mdir_hf.model.hub import parse_reference

    new: dict[str, None] = {}
    with contextlib.suppress(MdirError):
        repo_ids = [parse_reference(name).repo_id for name in names] if cache_max_bytes() else []
        new = dict.fromkeys(repo_id for repo_id in repo_ids if repo_id is not None)
    earlier_models = seen_models()
    if not new or tuple(new) == earlier_models[-len(new) :]:
        return
    latest = [*(name for name in earlier_models if name not in new), *new][-MOST_NAMES:]
    path = _place()
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text("".join(f"{name}\n" for name in latest), encoding="utf-8")
        beside.replace(path)


def _place() -> Path:
    return cache_root() / "models.txt"


_SCRIPTS = {
    "bash": """_mdir_hf() {
    local IFS=$'\\n'
    COMPREPLY=($(mdir-hf completion bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _mdir_hf mdir-hf
""",
    "zsh": """#compdef mdir-hf
_mdir_hf() {
    local -a found
    found=("${(@f)$(mdir-hf completion zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n $found[1] ]]; then compadd -a found; else _files; fi
}
compdef _mdir_hf mdir-hf
""",
    "fish": """function __mdir_hf
    set -l words (commandline -opc)
    set -l found (mdir-hf completion fish $words[2..] (commandline -ct) 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c mdir-hf -f -a '(__mdir_hf)'
""",
}
"""Shell scripts that get completions from this command and, if it returns none, complete file names."""

_MODELS = ("A", "B", "REPO")
"""Metavars of arguments that are model names."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``completion`` command."""
    parser = commands.add_parser(
        "completion",
        help="print a completion script for your shell",
        description="Print a script that completes commands, options and recently read models. For bash and zsh put "
        '`eval "$(mdir-hf completion bash)"` (or zsh) into ~/.bashrc (~/.zshrc); for fish, '
        "`mdir-hf completion fish | source` into ~/.config/fish/config.fish.",
    )
    parser.add_argument("shell", metavar="|".join(_SCRIPTS), choices=tuple(_SCRIPTS), help="the shell")
    parser.add_argument("words", metavar="…", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script or, when called by the script, the completions."""
    if not options.words:
        say(_SCRIPTS[options.shell])
        return 0
    from mdir_hf.cli.main import build_parser

    say("".join(f"{word}\n" for word in completions(build_parser(), options.words)))
    return 0


def completions(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return completions for the last word of a command line, except file names."""
    *before, begun = words
    commands = commands_of(parser)
    command = next((commands[word] for word in before if word in commands), None)
    return [word for word in _candidates(command, before, begun, list(commands)) if word.startswith(begun)]


def _candidates(
    command: argparse.ArgumentParser | None, before: Sequence[str], begun: str, names: Sequence[str]
) -> Sequence[str]:
    if command is None:
        return names
    options = command._option_string_actions
    valued = options.get(before[-1])
    if valued is not None and valued.nargs != 0:
        if valued.choices is not None:
            return [str(choice) for choice in valued.choices]
        return seen_models() if valued.metavar in _MODELS else ()
    if begun.startswith("-"):
        return [name for name in options if name.startswith("--")]
    positional = command._get_positional_actions()
    if any(action.choices is not None for action in positional):
        return [str(choice) for action in positional for choice in action.choices or ()]
    return seen_models() if any(action.metavar in _MODELS for action in positional) else ()
