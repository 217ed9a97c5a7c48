"""``ArmSession``: process-local context shared by the stages of one arm of networks.

The trainer is reused between stages, its state is not: a stage continues from the stored state that
its key names, so that no result depends on earlier stages of the process. A trainer of a user's
class is rebuilt for each stage, so that attributes missing from its state are lost in an
uninterrupted run as well, not only in a resumed one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import StateError
from ratchet.experiment_files.base_run import find_saved_state
from ratchet.seeding import derive_seed, seeded_globals
from ratchet.tracking.trainer_files import checkpoint_folder, remove_checkpoints
from tasks.stages.files import DATASETS_FOLDER, STATE_FOLDER
from tasks.stages.session import BaseSession

if TYPE_CHECKING:
    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.base import ScenarioInstance
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall
    from tasks.tensordict.keys import ArmKeys
    from trainers.base import Trainer
    from trainers.staged import StagedTrainer


class ArmSession(BaseSession):
    """The components of one arm of networks, built when the first stage needs them.

    Not thread-safe: an arm's stages run sequentially.
    """

    keys: ArmKeys

    def __init__(self, keys: ArmKeys, settings: ExperimentSettings, store: StageStore) -> None:
        one_thread = ThreadPoolExecutor(1, thread_name_prefix=f"stages of {keys.arm}")
        super().__init__(keys, settings, store, one_thread)
        self._instance: ScenarioInstance | None = None
        self._trainer: Trainer | None = None
        self._state_key: str | None = None
        self._phase: Phase | None = None
        self._datasets: dict[str, Any] = {}

    def close(self) -> None:
        """Release all components."""
        super().close()
        self._release()
        self._datasets = {}

    def _release(self) -> None:
        close = getattr(self._trainer, "close", None)
        if close is not None:
            close()
        self._instance = self._trainer = self._state_key = None

    @property
    def instance(self) -> ScenarioInstance:
        """The scenario's components, with the stored datasets."""
        if self._instance is None:
            import torch

            from ratchet.scenarios.registry import assemble_scenario_instance

            if torch.get_num_threads() != self.settings.num_threads:
                torch.set_num_threads(self.settings.num_threads)
            if not self._datasets:
                folder = self.store.open(self.keys.build_scenario().key) / DATASETS_FOLDER
                load = self.keys.scenario.load_dataset
                self._datasets = {path.name: load(path) for path in sorted(folder.iterdir())}
            self._instance = assemble_scenario_instance(
                self._hyper_params,
                self.settings,
                self._datasets,
                self.keys.trainer_class.trainer_type,
                self.keys.base_path,
            )
        return self._instance

    @property
    def trainer(self) -> Trainer:
        """The trainer in its current state, which the caller may change."""
        if self._trainer is None:
            instance = self.instance
            seed = derive_seed(self._hyper_params.seed, "initial_state", 0, "trainer")
            with seeded_globals(seed):  # a user's constructor may create networks
                self._trainer = self.keys.trainer_class(self._hyper_params, instance, self.settings)
            if self._phase is not None:
                _staged(self._trainer).phase = self._phase
            self._trainer.state_finder = partial(find_saved_state, settings=self.settings)
        self._state_key = None
        return self._trainer

    @property
    def _hyper_params(self) -> HyperParameters:
        return self.keys.hyper_params if self._phase is None else self._phase.hyper_params

    def _go_to(self, phase: Phase | None) -> None:
        """Rebuild the components for another phase; a user's trainer for each stage."""
        if phase is not self._phase or (self._trainer is not None and self._rebuilds):
            self._release()
            self._phase = phase

    @property
    def _rebuilds(self) -> bool:
        """Whether each stage builds a new trainer, since a custom one may have any attributes."""
        from trainers.custom_state import is_custom

        return is_custom(self.keys.trainer_class)

    def rebuilt_trainer(self) -> Trainer:
        """Rebuild everything, for a trainer whose state cannot be set."""
        self._release()
        return self.trainer

    def fresh_trainer(self) -> StagedTrainer:
        """Return the trainer in its initial state."""
        self._go_to(None)
        trainer = _staged(self.trainer)
        trainer.initial_state()
        return trainer

    def trainer_at(self, key: str, phase: Phase | None = None) -> StagedTrainer:
        """Return the trainer, of a phase if there are any, with the state of a stored stage.

        The state is read from the store unless the trainer has it already.
        """
        self._go_to(phase)
        current = self._state_key
        trainer = self.trainer  # resets the state's key: the caller will change the state
        staged = _staged(trainer)
        if trainer.traits.learns_tokens:
            self.make_services_ready()  # one may host the model
        if current != key:
            staged.load_state(self._state_folder(key), key, self._state_folder)
        return staged

    def trainer_taking_over(self, key: str, phase: Phase | None) -> StagedTrainer:
        """Return the trainer of a phase, or of none, with the agents of another phase's state."""
        self._go_to(phase)
        pools = {} if phase is None else phase.pools or {}
        earlier = {
            (agent, iteration): self._state_folder(self.keys.state_key(iteration))
            for agent, iterations in pools.items()
            for iteration in iterations
        }
        first = () if phase is None else phase.fresh
        fresh = {agent: self._state_folder(self.keys.state_key(0)) for agent in first}
        staged = _staged(self.trainer)
        staged.take_over(self._state_folder(key), earlier, fresh)
        return staged

    def _state_folder(self, key: str) -> Path:
        return self.store.open(key) / STATE_FOLDER

    def stage_finished(self, call: StageCall) -> None:
        """Remove the checkpoints of a trainer without stages: its states are stored."""
        if call.stage == "run_trainer":
            remove_checkpoints(checkpoint_folder(self.settings.home, call.key))

    def holds(self, key: str) -> None:
        """Record that the trainer has the state of a stage that is stored now."""
        self._state_key = key


def _staged(trainer: Trainer) -> StagedTrainer:
    from trainers.staged import StagedTrainer

    if not isinstance(trainer, StagedTrainer):
        raise StateError(
            f"trainer {type(trainer).__name__} only has train(), expected a StagedTrainer."
        )
    return trainer
