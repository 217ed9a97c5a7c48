"""Processes that begin together, as a sweep's do, find one new database and not half of two."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CODE = """
import sys
from ratchet.tracking.mlflow.client import connect
print(len(connect(sys.argv[1]).search_experiments()))
"""


def test_two_processes_that_open_a_new_database_at_once_both_get_it(tmp_path):
    uri = f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}"
    command = [sys.executable, "-c", CODE, uri]
    pipe = subprocess.PIPE
    both = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert [output.strip() for output, _ in outputs] == ["1", "1"]
