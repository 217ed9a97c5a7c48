"""Log lines have their context: on a terminal as text, in the run's folder as JSON."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.tracking import logs
from ratchet.tracking.logs import LOG_FILE, JsonFormatter, WithLogContext, kept_log, log_context

ours = logging.getLogger("ratchet.somewhere")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in logs.OUR_LOGGERS}
    handlers = list(root.handlers)
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]


def test_a_run_stores_its_lines_from_level_info_with_their_context(tmp_path: Path) -> None:
    with log_context(run="nip-1"), kept_log(tmp_path, "nip-1"):
        ours.info("begins")
        with log_context(arm="main", stage="train", iteration=10):
            ours.info("half\nway é")
            ours.debug("not kept")
            logging.getLogger("somebody.else").warning("theirs %d", 1)
            in_thread = contextvars.copy_context().run
            thread = threading.Thread(target=in_thread, args=(ours.warning, "in a thread"))
            thread.start()
            thread.join()
        with log_context(run="nip-2"):
            ours.warning("of another run")
        try:
            raise ValueError("lost")
        except ValueError:
            ours.exception("went wrong")
    ours.warning("after its end")
    found = lines(tmp_path)
    messages = ["begins", "half\nway é", "theirs 1", "in a thread", "went wrong"]
    assert [line["message"] for line in found] == messages
    place = {"run": "nip-1", "arm": "main", "stage": "train", "iteration": 10}
    assert all(place.items() <= line.items() for line in found[1:4])
    assert found[0]["run"] == "nip-1"
    assert "stage" not in found[0]
    assert (found[0]["level"], found[0]["logger"]) == ("INFO", "ratchet.somewhere")
    assert found[0]["time"].endswith("Z")
    assert "ValueError: lost" in found[4]["exception"]


def test_an_unwritable_log_does_not_end_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_context(run="nip-1"), kept_log(tmp_path / "not there", "nip-1"):
        ours.warning("said to nobody")
    full = Path("/dev/full")
    (tmp_path / LOG_FILE).symlink_to(full)
    with log_context(run="nip-1"), kept_log(tmp_path, "nip-1"):
        ours.warning("said to nobody")
    assert "Traceback" not in capsys.readouterr().err


def test_text_lines_have_the_context_after_the_first_line() -> None:
    record = logging.makeLogRecord({"msg": "tried again\nmore", "levelname": "WARNING"})
    formatter = WithLogContext(logging.Formatter("%(levelname)s %(message)s"))
    assert formatter.format(record) == "WARNING tried again\nmore"
    with log_context(run="nip-1", arm="main", stage="test", iteration=0):
        assert formatter.format(record) == "WARNING tried again [nip-1 main test 0]\nmore"


def test_an_environment_variable_selects_json_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    words = logging.StreamHandler()
    logging.getLogger().addHandler(words)
    monkeypatch.setenv(logs.VARIABLE, "json")
    for _ in range(2):  # once for each run in the process
        with log_context(run="nip-1"), kept_log(tmp_path, "nip-1"):
            ours.info("begins")
    written = [json.loads(line) for line in screen.getvalue().splitlines()]
    assert [(line["message"], line["run"]) for line in written] == [("begins", "nip-1")] * 2
    assert words not in logging.getLogger().handlers
    assert isinstance(logging.getLogger().handlers[-1].formatter, JsonFormatter)
