"""Set up the process before Prefect, MLflow and torch are imported.

They read the environment once, when they are imported. What the user has set stays.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flows.process.lean_imports import leave_compiler_out
from flows.process.logins import PREFECT, read_logins
from flows.process.stack_file import running_stack
from ratchet.tracking.logs import OUR_LOGGERS, WithPlace, write_json, writes_json

_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "60",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    # the temporary server complains of being stopped; what we say ourselves is let through below
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_ENGINE_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
DEBUG = "RATCHET_DEBUG"
"""The environment variable that ``--debug`` sets: errors with their tracebacks."""
_CHOSEN_PREFECT = ("PREFECT_API_URL", "PREFECT_HOME", "PREFECT_PROFILE")


def prepare_environment(
    home: str | Path, num_threads: int = 1, *, make_folders: bool = True
) -> None:
    """Keep Prefect's files under ``home``, use the local stack if it is up, and tell no one.

    A Prefect that the user has chosen (``PREFECT_API_URL``, ``PREFECT_HOME`` or
    ``PREFECT_PROFILE``) is used as it is. Numerical libraries get ``num_threads``;
    ``make_folders``: whether to make Prefect's folder, since Prefect itself makes no parents.
    """
    has_chosen = any(os.environ.get(name) for name in _CHOSEN_PREFECT)
    leave_compiler_out()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    if writes_json():
        write_json()
    for name in _THREADS:
        os.environ.setdefault(name, str(num_threads))
    if has_chosen:
        return
    folder = Path(home).resolve()
    os.environ["PREFECT_HOME"] = str(folder / "prefect")
    if make_folders:
        (folder / "prefect").mkdir(parents=True, exist_ok=True)
    stack = running_stack(folder)
    if stack is not None:
        os.environ["PREFECT_API_URL"] = stack.prefect_api_url
        if stack.is_open:
            os.environ[PREFECT] = read_logins(folder)[PREFECT]


def leave_tracebacks_out() -> None:
    """Keep what Prefect logs of a failed flow or task off the terminal, unless ``--debug``.

    It is still sent to Prefect's server, and whoever has started the run says why it failed, once.
    What is shown says which run and stage it is about.
    """
    from prefect.logging.handlers import PrefectConsoleHandler

    for handler in logging.getLogger().handlers:
        if not isinstance(handler, PrefectConsoleHandler):
            continue
        if not isinstance(handler.formatter, WithPlace):
            handler.setFormatter(WithPlace(handler.formatter))
        if not os.environ.get(DEBUG) and _is_to_be_shown not in handler.filters:
            handler.addFilter(_is_to_be_shown)


def _is_to_be_shown(record: logging.LogRecord) -> bool:
    """Return False for the errors of Prefect's engines, and for what its log alone is to have.

    The former come with a long traceback.
    """
    if record.name.partition(".")[0] in OUR_LOGGERS:
        return record.levelno >= logging.WARNING and not hasattr(record, "said_elsewhere")
    return record.name not in _ENGINE_LOGGERS or record.levelno < logging.ERROR


def log_to_prefect() -> None:
    """Send what our loggers say, within a flow run, to its log in Prefect; once a process.

    Not where nobody can read it there.
    """
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_UI_URL

    if not PREFECT_UI_URL.value():
        return
    for name in OUR_LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
        if not any(isinstance(handler, APILogHandler) for handler in logger.handlers):
            handler = APILogHandler(logging.INFO)
            handler.addFilter(_is_of_a_flow_run)
            logger.addHandler(handler)


def _is_of_a_flow_run(_: logging.LogRecord) -> bool:
    from prefect.context import FlowRunContext, TaskRunContext

    return FlowRunContext.get() is not None or TaskRunContext.get() is not None
