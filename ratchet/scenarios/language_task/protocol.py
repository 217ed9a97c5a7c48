"""The protocol ``environment`` of scenario ``language_task``: one agent does tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.scenarios.environment_protocol import EnvironmentProtocolHandler

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

AGENT = "agent"


class TaskProtocolHandler(EnvironmentProtocolHandler):
    """One agent, whose environment defines the messages and the end of an episode."""

    def __init__(self, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        super().__init__(hyper_params)
        self.base_dir = base_dir

    @property
    def agent_names(self) -> Sequence[str]:
        """The one agent."""
        return (AGENT,)


build = TaskProtocolHandler
