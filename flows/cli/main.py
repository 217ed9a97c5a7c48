"""``ratchet``: the command line's top.

Puts the commands together and is the outermost border for errors. Imports nothing heavy: asking
for help must not wait for torch.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows.cli import (
    analysing,
    checking,
    comparing,
    doctor,
    language_models,
    listing,
    plan,
    running,
    runs,
    stack,
    sweeping,
)
from flows.process.lean_imports import leave_compiler_out
from flows.process.messages import print_error, print_plain
from ratchet.errors import RatchetError

_EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130


class RatchetGroup(TyperGroup):
    """Turns errors that Ratchet raises on purpose into messages; ``--debug`` may stand anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 -- click's context
        """Take ``--debug`` out before the command sees it."""
        if "--debug" in args:
            os.environ["RATCHET_DEBUG"] = "1"
            args = [arg for arg in args if arg != "--debug"]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 -- click's context
        """Run the command; an error becomes a message and exit code 2."""
        leave_compiler_out()
        try:
            return super().invoke(ctx)
        except RatchetError as error:
            if os.environ.get("RATCHET_DEBUG"):
                raise
            print_error(str(error))
            raise typer.Exit(_EXIT_ERROR) from error
        except KeyboardInterrupt as error:
            print_error("Interrupted. Finished stages are kept: the same command goes on.")
            raise typer.Exit(_EXIT_INTERRUPTED) from error


app = typer.Typer(
    name="ratchet",
    cls=RatchetGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    help="Training experiments that only move forward.",
)


def _print_version(value: bool) -> None:
    if value:
        from ratchet import __version__

        print_plain(f"ratchet {__version__}")
        raise typer.Exit


@app.callback()
def ratchet(
    debug: Annotated[bool, typer.Option("--debug", help="Errors with their traceback.")] = False,
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
app.command()(checking.retest)
app.command()(checking.verify)
app.command()(plan.plan)
app.command()(analysing.analyse)
app.command()(comparing.compare)
app.command()(runs.report)
app.command(name="runs")(runs.list_all)
app.command()(runs.sync)
app.command(name="list")(listing.list_names)
app.command()(doctor.doctor)
app.command()(stack.up)
app.command()(stack.down)
app.command()(stack.deploy)
app.add_typer(language_models.llm, name="llm")
