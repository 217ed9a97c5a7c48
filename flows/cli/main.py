"""``ratchet``: the command line's entry point.

Registers the commands and handles errors. Imports no heavy packages, so that help is fast.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from flows.cli import (
    analyse,
    archive,
    compare,
    doctor,
    exploit,
    garbage_collection,
    language_models,
    list_names,
    new,
    plan,
    play,
    run,
    runs,
    stack,
    study,
    sweep,
    verification,
    watch,
)
from flows.cli.command import RatchetCommand
from flows.process.environment import DEBUG
from flows.process.import_shims import skip_compiler_import
from flows.process.messages import (
    note_error,
    output_as_json,
    print_error,
    print_plain,
    survive_closing,
)
from ratchet.errors import USAGE_ERRORS, RatchetError
from ratchet.lazy import explain_missing

_JSON = "ratchet.json"
_MAX_WIDTH = 200
_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_HELP = f"""Training experiments as cached, resumable runs.

Exit codes: 0 success; {_EXIT_FAILED} a run or a check failed; {_EXIT_USAGE} invalid usage or
parameters, or a missing prerequisite; {_EXIT_INTERRUPTED} interrupted.
"""


class RatchetGroup(TyperGroup):
    """Converts Ratchet's errors to messages and exit codes.

    Accepts ``--debug`` and ``--json`` at any position.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 -- click's context
        """Remove ``--debug`` and ``--json`` before the command parses its arguments."""
        if "--debug" in args:
            os.environ[DEBUG] = "1"
        ctx.meta[_JSON] = "--json" in args
        return super().parse_args(ctx, [arg for arg in args if arg not in ("--debug", "--json")])

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 -- click's context
        """Run the command; convert errors to a message and an exit code."""
        skip_compiler_import()
        if threading.current_thread() is threading.main_thread():
            survive_closing()
        with output_as_json() if ctx.meta[_JSON] else nullcontext():
            try:
                return self._invoke(ctx)
            except RatchetError as error:
                if os.environ.get(DEBUG):
                    raise
                print_error("\n".join([str(error), *getattr(error, "__notes__", ())]))
                is_usage = isinstance(error, USAGE_ERRORS) or _is_about_a_path(error)
                raise typer.Exit(_EXIT_USAGE if is_usage else _EXIT_FAILED) from error
            except OSError as error:
                if os.environ.get(DEBUG):
                    raise
                print_error(_describe_os_error(error))
                is_usage = _is_about_a_path(error)
                raise typer.Exit(_EXIT_USAGE if is_usage else _EXIT_FAILED) from error
            except TyperException as error:
                note_error(error.format_message())  # typer prints it with the command's usage
                raise
            except KeyboardInterrupt as error:
                reason = f": {error}" if str(error) else "."
                print_error(
                    f"Interrupted{reason} Finished stages are stored. Run the command to resume."
                )
                raise typer.Exit(_EXIT_INTERRUPTED) from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 -- click's classes
        """Write the commands below the titles of their groups, each with its complete help."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            panels.setdefault(command.rich_help_panel, []).append(
                (name, command.get_short_help_str())
            )
        width = max(len(name) for name in self.commands)
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in rows])

    def _invoke(self, ctx: Any) -> object:  # noqa: ANN401 -- click's context
        """Run the command; explain failed imports of optional packages."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            explained = explain_missing(error)
            if explained is None:
                raise
            raise explained from error


_PATH_ERRORS = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY, errno.EINVAL, errno.ENXIO),
)
"""Errors that another path, or other permissions of it, would avoid."""


def _is_about_a_path(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _PATH_ERRORS


def _describe_os_error(error: OSError) -> str:
    """Return the paths of an error of the system and its reason."""
    paths = " → ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    reason = error.strerror or str(error) or type(error).__name__
    text = f"{paths}: {reason}" if paths else f"{type(error).__name__}: {reason}"
    return f"{text}. Check the path and its permissions; --debug shows the traceback."


app = typer.Typer(
    name="ratchet",
    cls=RatchetGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": _MAX_WIDTH},
    help=_HELP,
)


def _print_version(value: bool) -> None:
    if value:
        from ratchet import __version__

        print_plain(f"ratchet {__version__}")
        raise typer.Exit


@app.callback()
def ratchet(
    debug: Annotated[bool, typer.Option("--debug", help="Show errors with tracebacks.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON document, with tables as records."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Training experiments as cached, resumable runs."""


COMMANDS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Run": {
        "new": new.new,
        "run": run.run,
        "resume": run.resume,
        "fork": run.fork,
        "sweep": sweep.sweep,
        "study": study.study,
        "retest": verification.retest,
        "cancel": runs.cancel,
    },
    "Inspect": {
        "plan": plan.plan,
        "runs": runs.list_all,
        "watch": watch.watch,
        "report": runs.report,
        "sweep-page": sweep.sweep_page,
        "list": list_names.list_names,
        "doctor": doctor.doctor,
    },
    "Compare": {
        "compare": compare.compare,
        "exploit": exploit.exploit,
        "crossplay": exploit.crossplay,
        "analyse": analyse.analyse,
        "play": play.play,
    },
    "Keep": {
        "verify": verification.verify,
        "restore": verification.restore,
        "export": archive.export,
        "import": archive.import_,
        "save-model": archive.save_models,
        "sync": runs.sync,
        "gc": garbage_collection.gc,
    },
    "Serve": {"up": stack.up, "down": stack.down, "deploy": stack.deploy},
}
"""Title in the help → command → function."""

for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=RatchetCommand, rich_help_panel=panel)(command)
app.add_typer(language_models.llm, name="llm", rich_help_panel="Serve")
