"""Files of other systems are recognised and named, with the guide that helps."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment

FILES = {
    "verl": ("actor_rollout_ref: {}\nalgorithm: {}\ntrainer: {total_epochs: 3}\n", "yaml"),
    "a sweep of W&B": ("program: train.py\nmethod: bayes\nparameters: {}\n", "yaml"),
    "prime-rl": ("max_steps: 3\norchestrator: {}\ninference: {}\n", "yaml"),
    "prime-rl ": ("max_steps = 3\n[orchestrator]\nbatch_size = 2\n", "toml"),
    "NexRL": ("project_name: x\nrollout_worker: {}\ntrain_worker: {}\n", "yaml"),
}


@pytest.mark.parametrize("system", FILES)
def test_a_file_of_another_system_is_named(system, tmp_path):
    text, suffix = FILES[system]
    path = tmp_path / f"other.{suffix}"
    path.write_text(text)
    with pytest.raises(ParameterError) as caught:
        load_experiment(path)
    message = str(caught.value)
    assert f"looks like a file of {system.strip()} (" in message
    assert "/guides/" in message
    assert len(message) < 500
    assert "Known: " not in message


def test_other_toml_is_no_bad_yaml_and_one_foreign_key_is_unknown(tmp_path):
    (tmp_path / "a.toml").write_text('[run]\nname = "x"\n')
    with pytest.raises(ParameterError, match="got a TOML file, expected an experiment file"):
        load_experiment(tmp_path / "a.toml")
    (tmp_path / "a.yaml").write_text("method: bayes\n")
    with pytest.raises(ParameterError, match="method: unknown parameter"):
        load_experiment(tmp_path / "a.yaml")
