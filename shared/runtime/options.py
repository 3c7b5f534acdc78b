"""Options of a script that torchrun starts on every rank. Taught in lesson 10."""

import argparse
import os
from typing import NoReturn

from shared.runtime.errors import InputError


class Options(argparse.ArgumentParser):
    """An ``ArgumentParser`` that speaks once, however many ranks parse the same command line.

    Rank 0 prints ``--help``. A wrong option raises ``InputError``: ``run`` makes one line of it.
    """

    def flag(self, name: str, help: str, default: bool = False) -> None:
        """Add ``--NAME`` and ``--no-NAME``."""
        state = "on" if default else "off"
        action = argparse.BooleanOptionalAction
        self.add_argument(name, action=action, default=default, help=f"{help} ({state})")

    def print_help(self, file=None) -> None:
        if os.environ.get("RANK", "0") == "0":
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help lists all options")


def positive(text: str) -> int:
    """The ``type`` of an option that counts something: a whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number
