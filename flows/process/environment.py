"""Set up the process before Prefect, MLflow and torch are imported.

These packages read the environment once, at import. Variables that the user has set are retained.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flows.process.heartbeats import HEARTBEAT_VARIABLES
from flows.process.import_shims import skip_compiler_import
from flows.process.stack_file import PREFECT_AUTH, read_credentials, running_stack
from ratchet.errors import ParameterError
from ratchet.tracking.logs import OUR_LOGGERS, WithLogContext, write_json, writes_json

_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "60",
    **HEARTBEAT_VARIABLES,
    "PREFECT_LOGGING_LEVEL": "WARNING",
    # the temporary server logs errors when it is stopped; Ratchet's records pass the filter below
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_TASK_LOGGER = "prefect.task_runs"
_ENGINE_LOGGERS = ("prefect.flow_runs", _TASK_LOGGER)
DEBUG = "RATCHET_DEBUG"
"""Environment variable set by ``--debug``: show errors with tracebacks."""
_PREFECT_CHOICES = ("PREFECT_API_URL", "PREFECT_HOME", "PREFECT_PROFILE")


def prepare_environment(
    home: str | Path, num_threads: int = 1, *, make_folders: bool = True
) -> None:
    """Store Prefect's files under ``home``, use the local stack if it is up, disable telemetry.

    Does not change a Prefect that the user has configured (``PREFECT_API_URL``, ``PREFECT_HOME``
    or ``PREFECT_PROFILE``). Numerical libraries use ``num_threads``; ``make_folders``: whether to
    create Prefect's folder, since Prefect does not create parents.
    """
    if "?" in str(Path(home).resolve()):
        raise ParameterError(
            f"settings.home: got {str(Path(home).resolve())!r}, expected a path without '?': the"
            " databases of Prefect and MLflow would be created outside of it. Rename the folder, or"
            " set settings.home."
        )
    is_configured = any(os.environ.get(name) for name in _PREFECT_CHOICES)
    skip_compiler_import()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    if writes_json():
        write_json()
    for name in _THREADS:
        os.environ.setdefault(name, str(num_threads))
    if is_configured:
        return
    folder = Path(home).resolve()
    os.environ["PREFECT_HOME"] = str(folder / "prefect")
    if make_folders:
        (folder / "prefect").mkdir(parents=True, exist_ok=True)
    stack = running_stack(folder)
    if stack is not None:
        os.environ["PREFECT_API_URL"] = stack.prefect_api_url
        if stack.is_open:
            os.environ[PREFECT_AUTH] = read_credentials(folder)[PREFECT_AUTH]


def hide_tracebacks() -> None:
    """Hide Prefect's log records of failed flows and tasks on the terminal, unless ``--debug``.

    They are still sent to Prefect's server, and the caller reports the error of a run once.
    Displayed records contain the run and the stage.
    """
    from prefect.logging.handlers import PrefectConsoleHandler

    for handler in logging.getLogger().handlers:
        if not isinstance(handler, PrefectConsoleHandler):
            continue
        if not isinstance(handler.formatter, WithLogContext):
            handler.setFormatter(WithLogContext(handler.formatter))
        if not os.environ.get(DEBUG) and _should_show not in handler.filters:
            handler.addFilter(_should_show)


def _should_show(record: logging.LogRecord) -> bool:
    """Return False for errors of Prefect's engines, with long tracebacks, and log-only records."""
    if record.name.partition(".")[0] in OUR_LOGGERS:
        return record.levelno >= logging.WARNING and not hasattr(record, "logged_elsewhere")
    return record.name not in _ENGINE_LOGGERS or record.levelno < logging.ERROR


def log_to_prefect() -> None:
    """Send Ratchet's log records within a flow run to its log in Prefect; once per process.

    Ratchet's record of a finished stage replaces Prefect's. Does nothing with a server that has no
    UI.
    """
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_UI_URL

    if not PREFECT_UI_URL.value():
        return
    logging.getLogger(_TASK_LOGGER).addFilter(_is_logged_once)
    for name in OUR_LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
        if not any(isinstance(handler, APILogHandler) for handler in logger.handlers):
            handler = APILogHandler(logging.INFO)
            handler.addFilter(_is_in_flow_run)
            logger.addHandler(handler)


def _is_logged_once(record: logging.LogRecord) -> bool:
    """Return False for Prefect's record of the end of a task, unless it failed."""
    is_end = record.getMessage().startswith("Finished in state ")
    return not is_end or record.levelno > logging.INFO


def _is_in_flow_run(_: logging.LogRecord) -> bool:
    from prefect.context import FlowRunContext, TaskRunContext

    return FlowRunContext.get() is not None or TaskRunContext.get() is not None
