"""inspect-ai evaluates a trained model through a temporary service, without leftovers."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

from flows.runs.resolve import resolve_file
from ratchet.errors import MissingPackageError
from ratchet.language_models.suites.resolution import find_versions
from tasks.language.stages import SUITE_LOG_FILE
from tasks.stages.decorator import make_stage
from tasks.stages.families import stage_functions
from tasks.tensordict.session import ArmSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "language" / "my_suites.yaml"
PYTHON = os.environ.get("RATCHET_INSPECT_PYTHON", sys.executable)


@pytest.fixture
def inspect_python():
    """Return the interpreter with inspect-ai: this one, or that of the variable."""
    try:
        find_versions(PYTHON, (), None)
    except MissingPackageError as error:
        pytest.skip(str(error))
    return PYTHON


@pytest.mark.slow
def test_a_model_is_evaluated_with_the_suite_of_the_example(tmp_path, inspect_python, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    experiment = resolve_file(
        str(EXAMPLE),
        [
            f"settings.home={tmp_path}/home",
            f"evaluation.python={inspect_python}",
            "evaluation.suites.small_sums.limit=6",
        ],
    )
    (keys,) = experiment.keys
    stages = stage_functions(keys)
    session = ArmSession(keys, experiment.settings, experiment.store)
    for call in (keys.build_scenario(), keys.initial_state()):
        make_stage(stages[call.stage], call, session)
    call = keys.suite("small_sums", 0)
    made = make_stage(stages["suite"], call, session)
    found = make_stage(stages["suite"], call, session)
    session.close()
    assert (made.hit, found.hit) == (False, True)
    (point,) = made.manifest.metrics
    assert point.values.keys() == {"num_samples", "accuracy", "stderr"}
    assert point.values["num_samples"] == 6
    folder = experiment.store.open(call.key)
    log = json.loads((folder / SUITE_LOG_FILE).read_bytes())
    assert log["eval"]["dataset"]["samples"] == 25
    answers = json.loads((folder / "table.json").read_bytes())
    assert answers["sample_id"] == [f"{a}+{b}" for a in (0, 1) for b in range(5)][:6]
    asked = log["samples"][0]["messages"][0]["content"]
    assert asked == "0+0=", "as plain text"
    assert not [*tmp_path.glob("ratchet-*")], "files of service and suite must be removed"
