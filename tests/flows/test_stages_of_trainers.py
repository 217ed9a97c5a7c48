"""A plug-in's stage, declared in its file, is planned, stored, resumed, verified and shown."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from flows.planning.plan import plan
from flows.runs.export import export_run
from flows.runs.resolve import resolve_parameters
from flows.runs.run_view import view_run
from flows.runs.verify import verify_run
from ratchet.errors import ParameterError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.reports.report import build_report
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.stage_kinds import StageKind

TRAINER = {"module_path": "fitted_trainer.py", "class_name": "FittedTrainer"}


def resolved(lab, settings):
    params = lab.hyper_params(trainer=TRAINER)
    return resolve_parameters(params, settings, None, name="tiny", keep=False)


@pytest.mark.slow
def test_a_declared_stage_is_like_any_other(lab, new_lab):
    from mlflow import MlflowClient

    settings = lab.settings(tracking=True)
    params = lab.hyper_params(trainer=TRAINER)
    planned = [stage.stage for stage in plan(resolved(lab, settings))]
    assert planned[-3:] == ["train", "fit", "test"]
    lab.kill("stage=fit;after=0.01", params, settings)
    result = lab.run(params, settings)
    undisturbed = new_lab()
    assert lab.metrics(result) == undisturbed.metrics(undisturbed.run(params))
    assert lab.done().count("train 6") == lab.done().count("test test") == 1
    assert all(stage.hit for stage in plan(resolved(lab, settings)))

    folder = RunFolder(Path(result["folder"]))
    assert [kind.name for kind in folder.manifest.kinds] == ["fit"]
    assert ("fit", 7, "computed") in [
        (stage.stage, stage.iteration, stage.state) for stage in view_run(folder).stages
    ]
    chosen = ExperimentSettings.from_dict(settings)
    verified = verify_run(folder.run_id, chosen, stage="fit", remake=True)
    assert verified.is_sound
    assert verified.remade is not None
    assert "line_loss" in build_report(folder).read_text()
    client = MlflowClient(f"sqlite:///{lab.folder / 'home' / 'mlflow.db'}")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert any("fit/line_loss" in run.data.metrics for run in runs)
    export_run(folder.run_id, lab.folder / "run.zip", chosen.runs)
    with zipfile.ZipFile(lab.folder / "run.zip") as archive:
        assert any(name.endswith("/line.json") for name in archive.namelist())


def test_a_stage_with_the_name_of_another_is_refused(lab, tmp_path):
    text = (Path(__file__).parent / "fitted_trainer.py").read_text()
    text = text.replace('StageKind("fit"', 'StageKind("train"').replace(
        "from .tiny_trainer", "from tests.flows.tiny_trainer"
    )
    (tmp_path / "mine.py").write_text(text)
    settings = lab.settings(base_dir=str(tmp_path))
    params = lab.hyper_params(trainer="mine.py:FittedTrainer")
    with pytest.raises(ParameterError, match="its stage 'train' has the name of another kind"):
        plan(resolve_parameters(params, settings, None, name="tiny", keep=False))


def test_a_kind_is_recorded_as_plain_data():
    kind = StageKind("fit", curves="training", unit="steps")
    assert StageKind(**json.loads(json.dumps(kind.__dict__))) == kind
