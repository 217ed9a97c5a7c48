"""A custom mirror is used by path, syncs each value once, and is checked before the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.process.tracking_uri import choose_mirrors
from ratchet.errors import MissingPackageError, ParameterError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.plugins import load_module
from ratchet.tracking.mirrors.base import MIRRORS, choose_place, open_mirror
from ratchet.tracking.run_folder import RunFolder, RunManifest

EXAMPLES = Path(__file__).parents[2] / "examples"
KIND = "custom_mirror.py:CsvMirror"


def test_the_example_prints_each_value_once(capsys):
    text = load_module(EXAMPLES / "custom_mirror.py").main()
    assert text == capsys.readouterr().out
    assert text.splitlines()[1:] == ["main,train,0,loss,0.5", "main,train,1,loss,0.25"]


def test_settings_name_a_mirror_by_a_path_from_the_experiment_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CSV_FOLDER", str(tmp_path / "csv"))
    monkeypatch.chdir(tmp_path)
    settings = ExperimentSettings.from_dict(
        {"home": str(tmp_path), "base_dir": str(EXAMPLES), "mirrors": ["mlflow", KIND]}
    )
    mirrors = choose_mirrors(settings)
    assert list(mirrors) == ["mlflow", f"{EXAMPLES / KIND}"]
    kind = f"{EXAMPLES / KIND}"
    folder = RunFolder.create(
        tmp_path / "runs", RunManifest(run_id="r", name="r", arms={"main": {}})
    )
    folder.append_metrics("train", 0, {"loss": 1.0})
    mirror = open_mirror(kind, mirrors[kind])
    assert mirror.title == "CSV"
    assert mirror.live
    first = Path(mirror.sync(folder)).read_bytes()
    assert Path(open_mirror(kind, mirrors[kind]).sync(folder)).read_bytes() == first


def test_an_unknown_mirror_is_refused_with_the_nearest_name():
    with pytest.raises(ParameterError, match=r"settings\.mirrors: .*Did you mean 'mlflow'\?"):
        ExperimentSettings.from_dict({"mirrors": ["mlfow"]})


def test_packages_of_a_custom_mirror_are_required(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ratchet.tracking.mirrors.base import Mirror\n"
        "class Mine(Mirror):\n"
        "    packages = ('absent_package',)\n"
        "    def sync(self, folder): return ''\n"
    )
    with pytest.raises(MissingPackageError, match="pip install absent_package"):
        choose_place(f"{file}:Mine", "")


def test_a_class_that_is_not_a_mirror_is_refused():
    with pytest.raises(ParameterError, match=r"expected a subclass of .*Mirror"):
        choose_place(f"{EXAMPLES / 'custom_callback.py'}:RoundsUsed", "")


def test_built_in_mirrors_are_listed():
    assert set(MIRRORS.built_in) == {"mlflow", "tensorboard", "wandb"}
