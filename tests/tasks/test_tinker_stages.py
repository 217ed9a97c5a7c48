"""A run with a tinker service that is interrupted in a step resumes from its last model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from flows.runs.resolve import resolve_file
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.language_models.training_service.tinker_client import TinkerTrainingService
from tasks.stages.driver import run_stages
from tasks.stages.families import open_session
from tasks.stages.files import STATE_FOLDER
from tests.service.conftest import FakeEngine, RunningService
from trainers.language.state import LanguageState

pytest.importorskip("tinker")


EXAMPLE = Path(__file__).parents[2] / "examples" / "language" / "my_tinker_task.yaml"
SMALL = (
    "dataset=reverse",
    "language_task={num_train: 64, num_test: 8, reverse: {length: 3, num_symbols: 6}}",
    "language_task.evaluator=partial",
    "language_task.chat=false",
    "agents._default={model: ratchet-tiny, max_tokens: 5, lora: {rank: 4}}",
    "trainer.total_train_steps=2",
    "language={tasks_per_step: 4, group_size: 4, num_epochs: 2}",
    "settings={iterations_per_task: 1, retries: 0}",
)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Return a function that executes missing stages and returns metrics and the final state."""
    folder = tmp_path / "model"
    shape = SmallModelShape(layers=1, d_model=16, heads=2, context_length=32)
    make_small_model(folder, alphabet="abcdef=", shape=shape)
    monkeypatch.setenv("TINKER_API_KEY", "tml-none")
    with RunningService(tmp_path / "service", FakeEngine(0.0), model=folder).serving() as service:
        at = f"{{backend: tinker, url: {service.url!r}, api_key_name: TINKER_API_KEY,"
        at += f" config: {{tokenizer: {folder}, loss_fn: ppo, learning_rate: 0.01}}}}"

        def work(home):
            places = [f"trainer.train_service={at}", f"settings.home={tmp_path / home}"]
            experiment = resolve_file(str(EXAMPLE), [*SMALL, *places])
            return _work(experiment)

        yield work


def _work(experiment):
    (keys,), store = experiment.keys, experiment.store
    with closing(open_session(keys, experiment.settings, store)) as session:
        metrics = {
            (done.call.name, done.call.iteration): [p.values for p in done.manifest.metrics]
            for done in run_stages(session)
        }
    return metrics, LanguageState.load(store.open(keys.state_key(2)) / STATE_FOLDER)


@pytest.mark.slow
def test_an_interrupted_iteration_is_repeated_with_the_same_result(work, monkeypatch):
    whole, last = work("whole")
    steps = []
    taken = TinkerTrainingService.optim_step

    def cut_off(self, *given, **more):
        steps.append(taken(self, *given, **more))
        if len(steps) == 3:  # the first of the second iteration's two
            raise ConnectionError("the process is killed")
        return steps[-1]

    monkeypatch.setattr(TinkerTrainingService, "optim_step", cut_off)
    with pytest.raises(ConnectionError):
        work("cut")
    resumed, other = work("cut")
    assert len(steps) == 3 + 2, "the first iteration's steps must be reused"
    assert resumed == whole
    assert {"rollouts", "train", "test"} <= {name for name, _ in whole}
    names = [s.learners["agent"].pop(name) for s in (last, other) for name in ("model", "session")]
    assert all(name.startswith("tinker://") for name in names)
    assert len(set(names)) == 4, "the same weights, with names from the service"
    assert last.learners == other.learners
