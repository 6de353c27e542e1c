"""An argument parser that suggests the nearest word after a typo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from mdir_hf.cli.output import complain
from mdir_hf.names import did_you_mean

EXIT_USAGE = 2


class Parser(argparse.ArgumentParser):
    """An ``argparse.ArgumentParser`` with short error messages."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with status 2."""
        names = [str(action.metavar or action.dest) for action in self._get_positional_actions()]
        complain(f"{' '.join([self.prog, *names])}; see `{self.prog} --help`", label="usage:")
        complain(message, label=f"{self.prog}: error:")
        self.exit(EXIT_USAGE)


def commands_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each command by name."""
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(commands.choices)


def check_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Exit with status 2 if there are no words or if one is an unknown command or option; suggest similar names."""
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(EXIT_USAGE)
    commands = commands_of(parser)
    at = next((at for at, word in enumerate(words) if not word.startswith("-")), None)
    if at is None:
        return
    name = words[at]
    if name not in commands:
        parser.error(f"there is no command {name!r}{did_you_mean(name, commands) or ': ' + ', '.join(commands)}")
    command = commands[name]
    if any(action.nargs == argparse.REMAINDER for action in command._actions):
        return  # argparse checks the rest
    options = [option for option in command._option_string_actions if option.startswith("--")]
    for word in words[at + 1 :]:
        option, _, _ = word.partition("=")
        if option == "--":
            return
        if option.startswith("--") and not any(long_option.startswith(option) for long_option in options):
            command.error(f"there is no option {option}{did_you_mean(option, options)}")
