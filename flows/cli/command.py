"""The class of all commands: readable help and errors."""

from __future__ import annotations

import inspect
import re
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand

from ratchet.errors import nearest

_TYPE = re.compile(r" <.+>$")
_CHOICES = re.compile(r"(?P<value>'.*') is not one of (?P<choices>'.*')\.")


class RatchetCommand(TyperCommand):
    """A command whose help has single values, and whose errors name the nearest choice."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first sentence of the help, of any length."""
        return inspect.cleandoc(self.help or "").partition("\n\n")[0].replace("\n", " ")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 -- click's context
        """Parse the arguments; make the message of an invalid one readable."""
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            error.message = _readable(error.message)
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 -- click's classes
        """Write arguments without types, and options with those of a single value."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            parameters = [each for each in self.get_params(ctx) if each.param_type_name == kind]
            rows = [row for each in parameters if (row := each.get_help_record(ctx))]
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(_named(name, kind), text) for name, text in rows])


def _named(name: str, kind: str) -> str:
    """Return an argument without its type, or an option with its type as ``<str>``."""
    if kind == "argument":
        return _TYPE.sub("", name)
    return re.sub(r"<list\[(.+)\]>$", r"<\1>", name).replace(" range>", ">")


def _readable(message: str) -> str:
    """Return the message of a validation error, for a choice with the nearest name."""
    message = message.removeprefix("Value error, ")
    if not (match := _CHOICES.fullmatch(message)):
        return message
    value = match["value"].strip("'")
    choices = re.findall(r"'(.*?)'", match["choices"])
    return f"unknown {value!r}.{nearest(value, choices)}"
