"""Sections about data, message regression and runs that this one builds on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from ratchet.errors import ParameterError, nearest
from ratchet.parameters.base import SubParameters, register_parameters
from ratchet.parameters.purposes import SCENARIO, Purpose


@register_parameters("dataset_options")
class DatasetOptions(SubParameters, read_for=SCENARIO):
    """Which part of a dataset is used, and how its labels are made binary."""

    binarification_method: Literal["merge", "select_two", "random"] = "merge"
    selected_classes: tuple[int, int] | None = None
    binarification_seed: int | None = None
    make_balanced: bool = True
    max_train_size: PositiveInt | None = None


@register_parameters("message_regression")
class MessageRegressionParameters(SubParameters, read_for=Purpose.GAME):
    """A small network that learns to predict y from an agent's messages.

    ``test_size`` is the share of an iteration's datapoints that are held out, with all their
    episodes. Without ``reset_on_fit`` the network goes on learning from iteration to iteration.
    """

    enabled: bool = False
    agents: Literal["all"] | tuple[str, ...] = "all"
    method: Literal["mlp", "cnn"] = "mlp"
    test_size: float = Field(default=0.2, gt=0, lt=1)
    reset_on_fit: bool = True
    num_layers: PositiveInt = 2
    hidden_size: PositiveInt = 64
    activation: Literal["tanh", "relu", "gelu", "silu", "sigmoid"] = "relu"
    num_epochs: PositiveInt = 10
    batch_size: PositiveInt = 512
    learning_rate: PositiveFloat = 1e-3

    def choose_agents(self, agent_names: Sequence[str]) -> tuple[str, ...]:
        """Return the agents whose messages are regressed on.

        Raises
        ------
        ParameterError
            If one of them is not among ``agent_names``, the protocol's.
        """
        if self.agents == "all":
            return tuple(agent_names)
        for name in self.agents:
            if name not in agent_names:
                raise ParameterError(
                    f"message_regression.agents: got {name!r}, expected agents of the protocol."
                    f"{nearest(name, agent_names)}"
                )
        return self.agents

    def unread(self) -> Collection[str]:
        """List everything where nothing is regressed on."""
        return () if self.enabled else tuple(type(self).model_fields)


@register_parameters("base_run")
class BaseRunParameters(SubParameters, read_for=Purpose.NOTHING):
    """An earlier run whose parameters or states this one uses."""

    base_run_type: Literal["none", "parameters", "rerun_tests"] = "none"
    run_id: str | None = None
