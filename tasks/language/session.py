"""``LanguageArmSession``: what the stages of an arm share whose model learns from its tokens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tasks.stages.datasets import DATASETS_FOLDER
from tasks.tensordict.session import ArmSession

if TYPE_CHECKING:
    from pathlib import Path

    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.language.keys import LanguageArmKeys
    from trainers.base import Trainer
    from trainers.language.player import Player

START_PAYS_AFTER = 10.0
"""Seconds of playing in turn after which a process that plays beside is worth its start."""


class LanguageArmSession(ArmSession):
    """The components of an arm, and who plays while its trainer learns.

    One stage may be made beside the others: the next rollouts, which the player makes.
    """

    keys: LanguageArmKeys

    def __init__(
        self, keys: LanguageArmKeys, settings: ExperimentSettings, store: StageStore
    ) -> None:
        super().__init__(keys, settings, store)
        self.executor_beside = ThreadPoolExecutor(1, thread_name_prefix=f"rollouts of {keys.arm}")
        self._player: Player | None = None

    @property
    def player(self) -> Player:
        """Who plays in a process of its own; for one stage at a time."""
        if self._player is None:
            from trainers.language.player import Player

            self.make_services_ready()  # the process has this one's environment
            datasets = self.store.open(self.keys.build_scenario().key) / DATASETS_FOLDER
            self._player = Player(self.keys.hyper_params, self.settings, datasets)
        return self._player

    @property
    def trainer(self) -> Trainer:
        """The trainer in whatever state it is."""
        from trainers.language.trainer import LanguageTrainer

        trainer = super().trainer
        if isinstance(trainer, LanguageTrainer):
            trainer.plays_beside_after = START_PAYS_AFTER
        return trainer

    def state_folder(self, key: str) -> Path:
        """Return where the state lies that a stored stage ended with."""
        return self._state_folder(key)

    def close(self) -> None:
        """End the player first, for which a thread may wait."""
        if self._player is not None:
            self._player.close()
        self.executor_beside.shutdown()
        super().close()
