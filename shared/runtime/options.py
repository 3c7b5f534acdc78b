"""Options of a script that torchrun starts on every rank. Taught in lesson 10."""

import argparse
import os

from shared.runtime.errors import InputError


class Options(argparse.ArgumentParser):
    """An ``ArgumentParser`` that speaks once, however many ranks parse the same command line.

    Rank 0 prints ``--help``. A wrong option raises ``InputError``: ``run`` makes one line of it.
    """

    def flag(self, name: str, help: str, default: bool = False) -> None:
        """Add ``--NAME`` and ``--no-NAME``."""
        help = f"{help} ({'on' if default else 'off'})"
        self.add_argument(name, action=argparse.BooleanOptionalAction, default=default, help=help)

    def print_help(self, file=None) -> None:
        if os.environ.get("RANK", "0") == "0":
            super().print_help(file)

    def error(self, message: str) -> None:
        raise InputError(f"{message}; --help lists all options")


def positive(text: str) -> int:
    """The ``type`` of an option that counts something: a whole number from 1 on."""
    if (number := int(text)) < 1:
        raise ValueError
    return number
