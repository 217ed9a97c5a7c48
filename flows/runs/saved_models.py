"""Trained language models of a run as folders that transformers, PEFT and vLLM load."""

from __future__ import annotations

import tempfile
from contextlib import closing
from typing import TYPE_CHECKING

from flows.runs.removed_states import states_of
from ratchet.errors import ParameterError
from tasks.language.keys import LanguageArmKeys
from tasks.language.session import LanguageArmSession
from tasks.stages.families import open_session
from trainers.language.trainer import LanguageTrainer

if TYPE_CHECKING:
    from pathlib import Path

    from flows.runs.resolve import ResolvedExperiment


def save_models(
    experiment: ResolvedExperiment,
    folder: Path,
    arm: str,
    iteration: int | None = None,
    *,
    merges: bool = False,
) -> tuple[int, list[Path]]:
    """Write the models of an arm's state, each into ``folder/NAME``.

    Returns the iterations that led to the state, and these folders.

    Parameters
    ----------
    folder
        A new folder; nothing is left in it if writing fails.
    iteration
        The number of iterations after which the state was stored; None for the last.
    merges
        Whether adapters are merged into their base models, else they are written in PEFT's layout.

    Raises
    ------
    ParameterError
        If the arm trains no language model in this process, or has no such state.
    """
    keys = next((keys for keys in experiment.keys if keys.arm == arm), None)
    if not isinstance(keys, LanguageArmKeys) or keys.trainer_class.traits.is_remote:
        raise ParameterError(
            f"save-model: run {experiment.run_id} trains no language model here in the arm"
            f" {arm!r}; expected one of the arms {[keys.arm for keys in experiment.keys]}, with a"
            " trainer such as grpo. Networks are in the run's MLflow model; a model trained at a"
            " service stays there."
        )
    stored = states_of(experiment.store, experiment.records, arm)
    state = stored.get(max(stored, default=0) if iteration is None else iteration)
    if state is None or state.removed:
        numbers = sorted(number for number, each in stored.items() if not each.removed)
        raise ParameterError(
            f"save-model: run {experiment.run_id} has no stored state after"
            f" {'training' if iteration is None else iteration} in the arm {arm!r}, expected one"
            f" of {numbers}. `ratchet restore` computes a removed one again."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    settings = experiment.settings.model_copy(update={"device": "cpu"})
    with (
        closing(open_session(keys, settings, experiment.store)) as session,
        tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name,
    ):
        assert isinstance(session, LanguageArmSession)  # the session of these keys
        trainer = session.trainer
        assert isinstance(trainer, LanguageTrainer)  # the trainer of these keys
        trainer.only_plays = True  # reads weights, not moments
        trainer.load_state(session.state_folder(state.key), state.key, session.state_folder)
        written = folder.parent / name / folder.name
        for model, learner in trainer.learners.items():
            save = learner.save_whole_model if merges else learner.save_model
            save(written / model)
        written.rename(folder)
        return state.iteration, [folder / model for model in trainer.learners]
