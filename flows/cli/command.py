"""The class of all commands: readable help and errors, and earlier spellings of options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand

from flows.process.messages import print_warning
from ratchet.errors import nearest

_OUTPUT = {"--to": "--output-dir"}
RENAMED_OPTIONS = {
    "run": {"--new": "--new-run", "--force": "--recompute"},
    "plan": {"--keys": "--show-keys"},
    "sweep-page": _OUTPUT,
    "compare": {
        **_OUTPUT,
        "--over": "--x-axis",
        "--reach": "--threshold",
        "--line": "--reference",
        "--page": "--update-page",
        "--different-data": "--allow-data-mismatch",
    },
    "gc": {
        "--down-to": "--max-size",
        "--unfinished": "--include-unfinished",
        "--forget": "--unregister",
    },
}
"""Command → earlier spelling of an option → current one. Earlier spellings are not in the help."""
_IN_ALL_COMMANDS = {"--runs": "--runs-dir"}
_TYPE = re.compile(r" <.+>$")
_CHOICES = re.compile(r"(?P<value>'.*') is not one of (?P<choices>'.*')\.")


class RatchetCommand(TyperCommand):
    """A command that accepts the earlier spellings of its options with a warning."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first sentence of the help, of any length."""
        return inspect.cleandoc(self.help or "").partition("\n\n")[0].replace("\n", " ")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 -- click's context
        """Replace earlier spellings of options, then parse the arguments."""
        try:
            return super().parse_args(ctx, list(self._current_spellings(args)))
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

    def _current_spellings(self, args: Sequence[str]) -> Iterator[str]:
        """Yield the arguments with current options; warn of each replaced one."""
        available = {name for parameter in self.params for name in parameter.opts}
        renamed = {
            old: new
            for old, new in (_IN_ALL_COMMANDS | RENAMED_OPTIONS.get(self.name or "", {})).items()
            if new in available
        }
        is_option = True
        for arg in args:
            is_option = is_option and arg != "--"
            option, equals, value = arg.partition("=")
            if not is_option or option not in renamed:
                yield arg
                continue
            print_warning(f"{option} is deprecated: use {renamed[option]}.")
            yield f"{renamed[option]}{equals}{value}"


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
