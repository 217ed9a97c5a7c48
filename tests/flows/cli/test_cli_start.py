"""``ratchet`` starts fast: help imports no heavy packages."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "prefect", "mlflow", "pydantic", "omegaconf", "numpy", "openai", "rich.progress")


def test_the_app_imports_no_heavy_packages() -> None:
    code = (
        "import sys, flows.cli.main\n"
        f"sys.stdout.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_help_lists_all_commands() -> None:
    code = "import sys; sys.argv[0] = 'ratchet'; from flows.cli.main import app; app(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("run", "resume", "fork", "plan", "report", "runs", "list", "doctor", "sync"):
        assert f"\n  {command} " in done.stdout
    for command in ("up", "down", "deploy"):
        assert f"\n  {command} " in done.stdout
