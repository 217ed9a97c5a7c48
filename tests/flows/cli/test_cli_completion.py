"""Shell completion of commands, experiment files and runs, without heavy imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "prefect", "mlflow", "numpy")
CODE = f"""
import atexit, sys
sys.argv[0] = "ratchet"
from flows.cli.main import app
atexit.register(lambda: sys.stderr.write(" ".join(n for n in {HEAVY!r} if n in sys.modules)))
app(prog_name="ratchet")
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ratchet pl", ["plan", "play"]),
        ("ratchet run experiments/d", ["experiments/demo.yaml", "experiments/digits.yaml"]),
        ("ratchet run mi", ["mine.yaml"]),
        ("ratchet plan ex", ["experiments/"]),
        ("ratchet resume de", ["demo-12345678"]),
        ("ratchet compare d", ["demo-12345678"]),
        ("ratchet list par", ["parameters"]),
    ],
)
def test_completion(words: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    for name in ("experiments/demo.yaml", "experiments/digits.yaml", "mine.yaml", "mine.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "runs" / "demo-12345678").mkdir(parents=True)
    (tmp_path / "runs" / "demo-12345678" / "manifest.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "_RATCHET_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split() == expected, done.stderr
    assert done.stderr == ""
