"""``LanguageArmSession``: process-local context shared by an arm's stages of a language trainer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tasks.stages.files import DATASETS_FOLDER
from tasks.tensordict.session import ArmSession

if TYPE_CHECKING:
    from pathlib import Path

    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.language.keys import LanguageArmKeys
    from trainers.base import Trainer
    from trainers.language.rollout_worker import RolloutWorker
    from trainers.staged import StagedTrainer

START_PAYS_AFTER = 10.0
"""Seconds of sequential sampling after which a rollout worker is worth its start-up time."""


class LanguageArmSession(ArmSession):
    """The components of an arm, and a worker that samples while its trainer trains.

    One stage may run concurrently with another: the next rollouts, sampled by the worker.
    """

    keys: LanguageArmKeys  # type: ignore[assignment] # has all attributes of shared stages

    def __init__(
        self, keys: LanguageArmKeys, settings: ExperimentSettings, store: StageStore
    ) -> None:
        super().__init__(keys, settings, store)  # type: ignore[arg-type] # likewise
        self.parallel_executor = ThreadPoolExecutor(1, thread_name_prefix=f"rollouts of {keys.arm}")
        self._rollout_worker: RolloutWorker | None = None

    @property
    def rollout_worker(self) -> RolloutWorker:
        """The worker that samples in a separate process, for one stage at a time."""
        if self._rollout_worker is None:
            from trainers.language.rollout_worker import RolloutWorker

            self.make_services_ready()  # the worker inherits this process's environment
            datasets = self.store.open(self.keys.build_scenario().key) / DATASETS_FOLDER
            self._rollout_worker = RolloutWorker(self.keys.hyper_params, self.settings, datasets)
        return self._rollout_worker

    @property
    def trainer(self) -> Trainer:
        """The trainer in its current state."""
        from trainers.language.ranks.rows import ranks_sample
        from trainers.language.trainer import LanguageTrainer

        trainer = super().trainer
        if isinstance(trainer, LanguageTrainer):
            trainer.plays_beside_after = START_PAYS_AFTER
            is_sharded = ranks_sample(self.keys.hyper_params.language)
            trainer.only_plays = self.keys.only_tests and not is_sharded
        return trainer

    def trainer_taking_over(self, key: str, phase: Phase | None) -> StagedTrainer:
        """Return the trainer of a phase, or of none, with the models of another phase's state."""
        if phase is None:
            return self.trainer_at(key)
        from trainers.language.trainer import LanguageTrainer
        from trainers.pools import member_name

        self._go_to(phase)
        self.make_services_ready()
        trainer = self.trainer
        assert isinstance(trainer, LanguageTrainer)
        pool = {
            member_name(agent, iteration): self.keys.state_key(iteration)
            for agent, iterations in (phase.pools or {}).items()
            for iteration in iterations
        }
        fresh = dict.fromkeys(phase.fresh, self._state_folder(self.keys.state_key(0)))
        trainer.begin_phase(self._state_folder(key), self._state_folder, pool, fresh)
        return trainer

    @property
    def _rebuilds(self) -> bool:
        """Whether each stage builds a new custom trainer: not if an inference server would restart.

        Starting one takes a minute, and its GPU memory.
        """
        language = self.keys.hyper_params.language
        return (
            super()._rebuilds and language.engine == type(language).model_fields["engine"].default
        )

    def state_folder(self, key: str) -> Path:
        """Return the folder of the final state of a stored stage."""
        return self._state_folder(key)

    def close(self) -> None:
        """Close the worker first, since a thread may wait for it."""
        if self._rollout_worker is not None:
            self._rollout_worker.close()
        self.parallel_executor.shutdown()
        super().close()
