"""A suite runs in a separate process, and reports errors."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from ratchet.errors import (
    DataError,
    MissingPackageError,
    ParameterError,
    SuiteFailedError,
    UnknownNameError,
)
from ratchet.language_models.endpoints import ModelAddress
from ratchet.language_models.suites.resolution import check_suites, find_python, find_suite
from ratchet.language_models.suites.running import run_suite
from ratchet.parameters.options import EvaluationParameters

from .fake_inspect import LOG, fake_inspect

MODEL = ModelAddress("http://127.0.0.1:9/v1", "model", "the-services-key")
TASK = """
from inspect_ai import task

@task
def sums(largest=9):
    ...
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sums.py").write_text(TASK)
    return tmp_path


def suite(folder, python, **changes):
    given = {"task": "sums.py@sums", **changes}
    evaluation = EvaluationParameters(python=str(python), suites={"sums": given})
    return find_suite("sums", evaluation, max_tokens=8, seed=5, base_dir=folder)


def test_a_suite_is_asked_as_said_and_its_log_is_kept(folder, monkeypatch):
    monkeypatch.setenv("INSPECT_EVAL_TEMPERATURE", "1.5")
    monkeypatch.setenv("PYTHONPATH", "/ours")
    given, versions = suite(folder, fake_inspect(folder), arguments={"largest": 3}, limit=2)
    result = run_suite(given, MODEL, folder / "kept.json")
    assert versions == {"inspect-ai": "0.3.285", "openai": "3.52.0"}
    assert result.metrics["num_samples"] == 2
    assert (folder / "kept.json").read_bytes() == LOG.read_bytes()
    asked, environment, _ = json.loads((folder / "notes.json").read_text())
    logs = asked.pop("log_dir")
    assert not Path(logs).exists()
    assert asked == {
        "task": f"{folder}/sums.py@sums",
        "arguments": {"largest": 3},
        "model": "model",
        "url": "http://127.0.0.1:9/v1",
        "seed": 5,
        "temperature": 0.0,
        "max_tokens": 8,
        "limit": 2,
        "max_connections": 10,
    }
    assert environment["RATCHET_SUITE_KEY"] == "the-services-key"
    assert not {"INSPECT_EVAL_TEMPERATURE", "PYTHONPATH"} & environment.keys()
    assert "the-services-key" not in repr(MODEL)


@pytest.mark.parametrize(
    ("does", "error", "says"),
    [
        ("print('no such task'); sys.exit(3)", DataError, "could not start: no such task"),
        ("print('gone'); sys.exit(1)", SuiteFailedError, "code 1 and 0 logs.*gone"),
        ("sys.exit()", SuiteFailedError, "0 logs"),
    ],
)
def test_what_ends_without_a_log_says_its_last_words(folder, does, error, says):
    given, _ = suite(folder, fake_inspect(folder, does=does))
    with pytest.raises(error, match=rf"suite sums, .*sums.py@sums: .*{says}"):
        run_suite(given, MODEL, folder / "kept.json")
    assert not (folder / "kept.json").exists()


def test_a_failed_suite_is_named_and_leaves_no_log(folder):
    failed = LOG.with_name("failed_0.3.285.json")
    given, _ = suite(folder, fake_inspect(folder, log=failed))
    with pytest.raises(SuiteFailedError, match=r"suite sums, .*@sums: status 'error': .*nothing"):
        run_suite(given, MODEL, folder / "kept.json")
    assert not (folder / "kept.json").exists()


def test_who_is_interrupted_leaves_no_process(folder):
    given, _ = suite(folder, fake_inspect(folder, does="time.sleep(60)"))
    from trainers.interruption import interrupt_thread

    thread = threading.Thread(target=_quietly, args=(given, folder / "kept.json"))
    thread.start()
    while not (folder / "notes.json").exists():
        time.sleep(0.02)
    time.sleep(0.05)
    _, _, pid = json.loads((folder / "notes.json").read_text())
    interrupt_thread(thread.ident)
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _quietly(given, file):
    with contextlib.suppress(BaseException):
        run_suite(given, MODEL, file)


def test_what_is_missing_is_said_before_anything_runs(folder):
    def check(python, **changes):
        given = {"task": "sums.py@sums", **changes}
        evaluation = EvaluationParameters(python=str(python), suites={"sums": given})
        check_suites(evaluation, folder)

    here = fake_inspect(folder)
    check(here)
    with pytest.raises(UnknownNameError, match=r"no function 'sum' .*Did you mean 'sums'"):
        check(here, task="sums.py@sum")
    with pytest.raises(ParameterError, match=r"file .*others.py does not exist"):
        check(here, task="others.py@sums")
    with pytest.raises(ParameterError, match=r"has no argument 'largst'. Did you mean 'largest'"):
        check(here, arguments={"largst": 3})
    with pytest.raises(ParameterError, match="is not executable"):
        check(folder / "nothing")
    with pytest.raises(MissingPackageError, match=r"some_package not installed.*-m pip install"):
        check(here, task="some_package/task")
    (folder / "bare").mkdir()
    bare = fake_inspect(folder / "bare", inspect_ai=None)
    with pytest.raises(MissingPackageError, match=rf"{bare} -m pip install inspect-ai"):
        check(bare)
    with pytest.raises(ParameterError, match="could not list its packages"):
        check("/bin/true")


@pytest.mark.parametrize("task", ["sums.py", "sums.py@", "sums", "a/b@c", "/task", "package/"])
def test_a_task_is_a_function_of_a_file_or_of_a_package(task):
    with pytest.raises(ValueError, match=r"path/to/file.py@function"):
        EvaluationParameters(suites={"sums": {"task": task}})


def test_stages_are_named_by_suites():
    with pytest.raises(ValueError, match="letters, digits"):
        EvaluationParameters(suites={"a b": {"task": "p/t"}})


def test_our_own_interpreter_is_the_default():
    assert find_python(None, None) == sys.executable
