"""The protocol ``environment`` of ``language_task``: an agent does tasks, or several play."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.games.loading import make_game
from ratchet.scenarios.environment_protocol import EnvironmentProtocolHandler

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

AGENT = "agent"


class TaskProtocolHandler(EnvironmentProtocolHandler):
    """One agent of tasks, or the seats of a game: the environment or game defines the rest."""

    def __init__(self, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        super().__init__(hyper_params)
        self.base_dir = base_dir
        game = make_game(hyper_params.dataset, hyper_params.language_task.task_options, base_dir)
        self._seats = (AGENT,) if game is None else game.seats

    @property
    def agent_names(self) -> Sequence[str]:
        """The one agent of tasks, or the game's seats."""
        return self._seats


build = TaskProtocolHandler
