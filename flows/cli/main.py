"""``ratchet``: the command line's top.

Puts the commands together and is the outermost border for errors. Imports nothing heavy: asking
for help must not wait for torch.
"""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from flows.cli import (
    analysing,
    checking,
    collecting,
    comparing,
    doctor,
    language_models,
    listing,
    moving,
    plan,
    running,
    runs,
    stack,
    sweep_pages,
    sweeping,
    watching,
)
from flows.process.environment import DEBUG
from flows.process.lean_imports import leave_compiler_out
from flows.process.messages import note_error, output_as_json, print_error, print_plain
from flows.process.terminal import survive_closing
from ratchet.errors import USAGE_ERRORS, RatchetError
from ratchet.lazy import explain_missing

_JSON = "ratchet.json"
_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_HELP = f"""Training experiments that only move forward.

Exit codes: 0 done; {_EXIT_FAILED} a run or a check has failed; {_EXIT_USAGE} wrong usage,
parameters, or something missing on this machine; {_EXIT_INTERRUPTED} interrupted.
"""


class RatchetGroup(TyperGroup):
    """Turns errors that Ratchet raises on purpose into messages and exit codes.

    ``--debug`` and ``--json`` may stand anywhere.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 -- click's context
        """Take ``--debug`` and ``--json`` out before the command sees them."""
        if "--debug" in args:
            os.environ[DEBUG] = "1"
        ctx.meta[_JSON] = "--json" in args
        return super().parse_args(ctx, [arg for arg in args if arg not in ("--debug", "--json")])

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 -- click's context
        """Run the command; an error becomes a message and an exit code."""
        leave_compiler_out()
        if threading.current_thread() is threading.main_thread():
            survive_closing()
        with output_as_json() if ctx.meta[_JSON] else nullcontext():
            try:
                return self._invoke(ctx)
            except RatchetError as error:
                if os.environ.get(DEBUG):
                    raise
                print_error("\n".join([str(error), *getattr(error, "__notes__", ())]))
                is_usage = isinstance(error, USAGE_ERRORS)
                raise typer.Exit(_EXIT_USAGE if is_usage else _EXIT_FAILED) from error
            except TyperException as error:
                note_error(error.format_message())  # it is printed with how the command is used
                raise
            except KeyboardInterrupt as error:
                print_error("Interrupted. Finished stages are kept: the same command goes on.")
                raise typer.Exit(_EXIT_INTERRUPTED) from error

    def _invoke(self, ctx: Any) -> object:  # noqa: ANN401 -- click's context
        """Run the command; a failed import of an optional package says how to install it."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            known = explain_missing(error)
            if known is None:
                raise
            raise known from error


app = typer.Typer(
    name="ratchet",
    cls=RatchetGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=_HELP,
)


def _print_version(value: bool) -> None:
    if value:
        from ratchet import __version__

        print_plain(f"ratchet {__version__}")
        raise typer.Exit


@app.callback()
def ratchet(
    debug: Annotated[bool, typer.Option("--debug", help="Errors with their traceback.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="What is printed as one JSON document, tables as records."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Training experiments that only move forward."""


app.command()(running.run)
app.command()(running.resume)
app.command()(running.fork)
app.command()(sweeping.sweep)
app.command(name="sweep-page")(sweep_pages.sweep_page)
app.command()(checking.retest)
app.command()(checking.verify)
app.command()(plan.plan)
app.command()(analysing.analyse)
app.command()(comparing.compare)
app.command()(runs.report)
app.command(name="runs")(runs.list_all)
app.command()(runs.sync)
app.command()(watching.watch)
app.command()(runs.cancel)
app.command()(collecting.gc)
app.command()(moving.export)
app.command(name="import")(moving.import_)
app.command(name="list")(listing.list_names)
app.command()(doctor.doctor)
app.command()(stack.up)
app.command()(stack.down)
app.command()(stack.deploy)
app.add_typer(language_models.llm, name="llm")
