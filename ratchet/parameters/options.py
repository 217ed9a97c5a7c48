"""Sections about data, message regression and runs that this one builds on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from ratchet.parameters.base import SubParameters, register_parameters
from ratchet.parameters.callbacks import CallbackSection
from ratchet.parameters.purposes import SCENARIO, Purpose


@register_parameters("dataset_options")
class DatasetOptions(SubParameters, read_for=SCENARIO):
    """Which part of a dataset is used, and how its labels are made binary."""

    binarification_method: Literal["merge", "select_two", "random"] = "merge"
    selected_classes: tuple[int, int] | None = None
    binarification_seed: int | None = None
    make_balanced: bool = True
    max_train_size: PositiveInt | None = None


class MessageRegressionParameters(SubParameters, read_for=Purpose.NOTHING):
    """A small network that learns to predict y from an agent's messages.

    ``test_size`` is the share of an iteration's datapoints that are held out, with all their
    episodes. Without ``reset_on_fit`` the network goes on learning from iteration to iteration.
    """

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


@register_parameters("message_regression")
class MessageRegressionSection(MessageRegressionParameters, CallbackSection):
    """The callback ``message_regression``, by a section of its own."""


@register_parameters("base_run")
class BaseRunParameters(SubParameters, read_for=Purpose.NOTHING):
    """An earlier run whose parameters or states this one uses."""

    base_run_type: Literal["none", "parameters", "rerun_tests"] = "none"
    run_id: str | None = None
