"""The notebooks run from top to bottom and show what their text says."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "examples" / "notebooks"
SHOWN = {
    "comparing": ["0.600", "0.900", "image/svg+xml"],
    "custom_game": ["90.0 %", "60.0 %"],
    "first_run": ["90.0 %", "image/png", "0 stages computed", "'train 60'"],
}
"""Parts of the outputs, in order."""


def test_each_notebook_is_run():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(SHOWN)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("comparing", marks=pytest.mark.exhaustive),  # a page has the same commands
        pytest.param("custom_game", marks=pytest.mark.exhaustive),  # likewise a tutorial
        "first_run",
    ],
)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "stored without outputs"
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, resources=place).execute()
    outputs = str([cell.get("outputs") for cell in notebook.cells])
    for part in SHOWN[name]:
        assert part in outputs
        outputs = outputs.partition(part)[2]
