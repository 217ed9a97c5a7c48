"""The stages of arms whose agents are networks."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from ratchet.errors import DataError
from ratchet.rollouts.files import save_rollouts
from ratchet.rollouts.transcripts import save_report_transcripts
from ratchet.seeding import derive_seed, seeded_globals
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.files import (
    DATASETS_FILE,
    STATE_FOLDER,
    TRAIN_DATASET,
    TRANSCRIPTS_FILE,
    video_path,
    write_table,
)
from tasks.tensordict.session import ArmSession
from trainers.results import PretrainResult, with_test_prefix
from trainers.sampled_tests import dataset_of

PRETRAINED_FOLDER = "pretrained"
IMITATED_FOLDER = "imitated"
ROLLOUTS_FILE = "rollouts.safetensors"
HISTORY_FILE = "history.json"
_PURPOSE = "whole"
"""Purpose of the random numbers of ``run_trainer``; changing it changes results."""


@stage
def initial_state(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Sample the initial weights, fit normalizations, and write the state."""
    session.fresh_trainer().save_state(folder / STATE_FOLDER, call.key)
    return []


@stage
def pretrain(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Train the agent named by ``call.detail`` and write its weights and test predictions."""
    trainer = session.trainer_at(session.keys.initial_state().key)
    result = trainer.pretrain(call.detail)
    result.save(folder / PRETRAINED_FOLDER)
    if result.table:
        write_table(folder, result.table)
    return [
        IterationMetrics(iteration=epoch, values=values)
        for epoch, values in enumerate(result.metrics)
    ]


@stage
def pretrained_state(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Load the pretrained weights into the initial state."""
    keys = session.keys
    trainer = session.trainer_at(keys.initial_state().key)
    for agent in keys.pretrained_agents:
        weights = session.store.open(keys.pretrain(agent).key) / PRETRAINED_FOLDER
        trainer.load_pretrained(agent, PretrainResult.load(weights))
    trainer.save_state(folder / STATE_FOLDER, call.key)
    return []


@stage
def imitate(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Train the agent named by ``call.detail`` on demonstrations, and write its weights."""
    keys = session.keys
    trainer = session.trainer_at(keys.state_to_imitate_from().key)
    files = [_demonstrations(session, key) for key in keys.imitated_rollouts]
    result = trainer.imitate(call.detail, files)
    result.save(folder / IMITATED_FOLDER)
    return [
        IterationMetrics(iteration=iteration, values=values)
        for iteration, values in enumerate(result.metrics)
    ]


def _demonstrations(session: ArmSession, key: str) -> Path:
    """Return the file of a run's rollouts; DataError if its training data differ."""
    stored = session.store.peek(key)
    data = session.keys.build_scenario().key
    other_data = None if stored is None else stored.inputs["data"]
    if isinstance(other_data, str) and other_data != data:  # perhaps only the code differs
        digests = [_train_digest(session, each) for each in (data, other_data)]
        if digests[0] != digests[1]:
            raise DataError(
                f"imitation.source: got {session.keys.hyper_params.imitation.source!r}, whose"
                " rollouts are about other training data, expected the same: give both runs the"
                " same parameters of the data, and one dataset_seed or seed."
            )
    return session.store.open(key) / ROLLOUTS_FILE


def _train_digest(session: ArmSession, key: str) -> object:
    return json.loads((session.store.open(key) / DATASETS_FILE).read_text())[TRAIN_DATASET]


@stage
def imitated_state(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Load the weights learned by imitation into the state."""
    keys = session.keys
    trainer = session.trainer_at(keys.state_to_imitate_from().key)
    for agent in keys.imitating_agents:
        weights = session.store.open(keys.imitate(agent).key) / IMITATED_FOLDER
        trainer.load_imitated(agent, PretrainResult.load(weights))
    trainer.save_state(folder / STATE_FOLDER, call.key)
    return []


@stage
def phase_state(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Write a phase's initial state: the previous phase's agents with a new optimizer."""
    keys = session.keys
    before = keys.state_key(call.iteration)
    trainer = session.trainer_taking_over(before, keys.phase_from(call.iteration))
    trainer.save_state(folder / STATE_FOLDER, call.key)
    session.holds(call.key)
    return []


@stage
def rollouts(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Collect the rollouts of iteration ``call.iteration`` again and write them.

    They follow from the state at the iteration's start. Training itself only stores states and
    metrics, so that its result does not depend on which rollouts the settings request.
    """
    keys = session.keys
    trainer = session.trainer_at(
        keys.beginning_key(call.iteration), keys.phase_from(call.iteration)
    )
    if trainer.has_stopped:
        return []
    sampled = trainer.sample_rollouts(call.iteration)
    names = list(session.instance.protocol_handler.agent_names)
    metadata = {"agent_names": json.dumps(names), "iteration": str(call.iteration)}
    save_rollouts(sampled, folder / ROLLOUTS_FILE, metadata)
    transcripts = session.instance.train_environment.transcripts(sampled)
    if transcripts:
        save_report_transcripts(folder / TRANSCRIPTS_FILE, transcripts)
    return []


@stage
def train(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Continue from the state after ``call.start_iteration`` iterations; write the new state.

    The metrics of iteration i were measured while it ran, i.e. they have the number i.
    """
    start, stop = call.start_iteration, call.iteration
    keys = session.keys
    trainer = session.trainer_at(keys.beginning_key(start), keys.phase_before(stop))
    metrics = trainer.run_iterations(start, stop)
    trainer.save_state(folder / STATE_FOLDER, call.key)
    session.holds(call.key)
    return [
        IterationMetrics(iteration=start + number, values=values)
        for number, values in enumerate(metrics)
    ]


@stage
def test(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Test on the dataset named by ``call.detail``; write the answer to each datapoint.

    States of any phase are tested with the agents themselves, by the experiment's parameters.
    """
    if not session.keys.is_staged:
        return _run_test_loop(call, session)
    key = session.keys.state_key(call.iteration)
    has_phases = bool(session.keys.phases)
    trainer = session.trainer_taking_over(key, None) if has_phases else session.trainer_at(key)
    dataset, is_sampled = dataset_of(call.detail)
    result = trainer.run_test(dataset, sampled=is_sampled)
    write_table(folder, result.table)
    for index, video in enumerate(result.films):
        path = folder / video_path(index)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(video)
    if result.transcripts:
        save_report_transcripts(folder / TRANSCRIPTS_FILE, result.transcripts)
    values = with_test_prefix(result.metrics)
    return [IterationMetrics(iteration=call.iteration, values=values)]


def _run_test_loop(call: StageCall, session: ArmSession) -> Metrics:
    """Run a custom loop's test with a state that it saved; return the means of its metrics."""
    session.make_services_ready()
    trainer = session.rebuilt_trainer()
    with seeded_globals(derive_seed(session.keys.hyper_params.seed, "test")):
        trainer.checkpoint_files.continue_from_folder(
            session.keys.tested_states[call.iteration].open()
        )
        with ExitStack() as stack:
            build_context = getattr(trainer, "_build_test_context", None)
            if build_context is not None:
                build_context(stack)
            trainer._run_test_loop()  # type: ignore[attr-defined] # only states with one are pinned
    logged: dict[str, list[float]] = {}
    for record in trainer.history:
        for name, value in record.values.items():
            logged.setdefault(name, []).append(value)
    means = {name: sum(values) / len(values) for name, values in logged.items()}
    return [IterationMetrics(iteration=call.iteration, values=means)]


@stage
def run_trainer(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Run ``train()`` of a trainer without stages; write its log, last and saved states.

    The metrics of the trainer's own stages have the prefix "STAGE/".
    """
    session.make_services_ready()
    trainer = session.rebuilt_trainer()
    trainer.checkpoint_files.name = call.key  # of any run: the same stage resumes where one stopped
    with seeded_globals(derive_seed(session.keys.hyper_params.seed, _PURPOSE)):
        trainer.prepare_training()
        trainer.train()
    trainer.checkpoint_files.write_states(folder)
    records = [[entry.stage, entry.iteration, entry.values] for entry in trainer.history]
    (folder / HISTORY_FILE).write_text(json.dumps(records) + "\n")
    points: dict[int, dict[str, float]] = {}
    for entry in trainer.history:
        values = {f"{entry.stage}/{name}": value for name, value in entry.values.items()}
        points.setdefault(entry.iteration, {}).update(values)
    return [IterationMetrics(iteration=i, values=values) for i, values in sorted(points.items())]
