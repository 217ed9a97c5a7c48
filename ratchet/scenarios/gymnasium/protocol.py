"""The protocol ``environment`` of scenario ``gymnasium``: agents are the environment's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.scenarios.environment_protocol import EnvironmentProtocolHandler
from ratchet.scenarios.gymnasium.catalogue import Game, LibraryGame, classes_of_files, find_game

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.gymnasium.spaces import AgentSpaces


class SimulatorProtocolHandler(EnvironmentProtocolHandler):
    """Agents of a gymnasium-style environment.

    ``dataset`` is the environment's id; the path of a custom one starts from ``base_dir``.
    """

    def __init__(self, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        super().__init__(hyper_params)
        self.base_dir = base_dir
        self.game: Game = find_game(hyper_params, base_dir)
        around = (*hyper_params.gymnasium.wrappers, *hyper_params.torchrl.transforms)
        self._around = classes_of_files(around, base_dir)

    @cached_property
    def spaces(self) -> AgentSpaces:
        """The agents' spaces."""
        return self.game.spaces()

    def check_simulated(self) -> None:
        """Refuse an environment of TorchRL's that only its trainers play: ParameterError."""
        if isinstance(self.game, LibraryGame):
            self.game.check()

    @property
    def agent_names(self) -> Sequence[str]:
        """The environment's agents."""
        return self.spaces.names

    @property
    def source_classes(self) -> tuple[type, ...]:
        """The class itself, the environment's if it is on tensors, and the user's own."""
        source = self.game.source
        sources = () if source is None else (source,)
        return (type(self), *sources, *self._around)


build = SimulatorProtocolHandler
