"""Sections that any trainer may have: data, message regression, base runs, evaluation suites."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, PositiveFloat, PositiveInt

from ratchet.parameters.base import CallbackSection, SubParameters, register_parameters
from ratchet.parameters.purposes import SCENARIO, Purpose


@register_parameters("dataset_options")
class DatasetOptions(SubParameters, read_for=SCENARIO):
    """Selection of a dataset's part, and binarification of its labels.

    - ``binarification_method``: assignment of classes to two labels: halves, two classes, or at
      random.
    - ``selected_classes``: classes that ``select_two`` keeps.
    - ``binarification_seed``: seed of ``random``; the experiment's seed when not given.
    - ``make_balanced``: drop datapoints until both labels are equally frequent.
    - ``max_train_size``: maximum number of training datapoints.
    """

    binarification_method: Literal["merge", "select_two", "random"] = "merge"
    selected_classes: tuple[int, int] | None = None
    binarification_seed: int | None = None
    make_balanced: bool = True
    max_train_size: PositiveInt | None = None


@register_parameters("validation")
class ValidationParameters(SubParameters, read_for=Purpose.DATA):
    """The validation split: data on which settings are chosen, held out of training and tests.

    Language tasks size their validation split by ``language_task.num_validation``.

    - ``size``: share of the split in all datapoints, taken from the training data.
    - ``replaces_test``: test on the split and drop the test set, so that the runs of a search
      cannot depend on test data.
    """

    size: float = Field(default=0.0, ge=0, lt=1)
    replaces_test: bool = False

    def unread(self) -> Collection[str]:
        """Return both fields if there is no split, so that keys do not include the section."""
        return () if self.size or self.replaces_test else ("size", "replaces_test")

    def sizes(self, num_train: int, num_test: int) -> tuple[int, int]:
        """Return the sizes of the training and the test set of a run, given those of the data."""
        num_validation = round(self.size * (num_train + num_test))
        return num_train - num_validation, num_validation if self.replaces_test else num_test


class MessageRegressionParameters(SubParameters, read_for=Purpose.NOTHING):
    """A small network that learns to predict y from an agent's messages.

    ``test_size`` is the share of an iteration's datapoints that are held out, with all their
    episodes. Without ``reset_on_fit`` the network continues learning across iterations.

    - ``agents``: agents whose messages are used.
    - ``method``: kind of network.
    - ``num_layers``: number of hidden layers.
    - ``hidden_size``: width of the hidden layers.
    - ``activation``: activation function.
    - ``num_epochs``: number of passes over an iteration's messages.
    - ``batch_size``: maximum number of episodes of an optimizer step.
    - ``learning_rate``: learning rate of Adam.
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
    """Section of the callback ``message_regression``."""


@register_parameters("base_run")
class BaseRunParameters(SubParameters, read_for=Purpose.NOTHING):
    """An earlier run whose parameters or states this one uses.

    - ``base_run_type``: use of the run: none, its parameters, or new tests of its states.
    - ``run_id``: id of the run.
    """

    base_run_type: Literal["none", "parameters", "rerun_tests"] = "none"
    run_id: str | None = None


def _check_task(task: str) -> str:
    """Refuse a file without a function, and a task without a package."""
    file, _, function = task.rpartition("@")
    if file.endswith(".py") and function.isidentifier():
        return task
    package, _, name = task.partition("/")
    if package and name and "@" not in task and not task.endswith(".py"):
        return task
    raise ValueError("Expected path/to/file.py@function, or package/task of an installed package")


def _check_name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError("Expected letters, digits and underscores: stages are named by it")
    return name


class SuiteParameters(SubParameters, read_for=Purpose.NOTHING):
    """A task of ``inspect-ai`` that a model is evaluated on.

    ``when``: ``test`` after training, ``validate`` also after every ``language.validate_every``
    iterations. ``limit`` evaluates only the first samples. At most ``max_connections`` requests are
    sent concurrently.

    - ``task``: task to run: ``path/to/file.py@function``, relative to the experiment file's folder,
      or ``package/task``.
    - ``arguments``: arguments of the task's function.
    - ``files``: files and folders that the task reads in addition to its code; the stage's key
      includes their content.
    - ``max_tokens``: maximum number of tokens of a completion; the agent's when not given.
    - ``temperature``: sampling temperature of the model.
    """

    task: Annotated[str, AfterValidator(_check_task)]
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    files: tuple[str, ...] = ()
    when: Literal["test", "validate"] = "test"
    limit: PositiveInt | None = None
    temperature: float = Field(default=0.0, ge=0, le=2)
    max_tokens: PositiveInt | None = None
    max_connections: PositiveInt = 10


@register_parameters("evaluation")
class EvaluationParameters(SubParameters, read_for=Purpose.NOTHING):
    """Suites of ``inspect-ai`` that language models are evaluated on, each in a separate stage.

    Only the key of a suite's stage includes the suite's parameters.

    - ``suites``: suites by name.
    - ``python``: interpreter with ``inspect-ai`` and ``openai`` installed, as a path relative to
      the experiment file's folder; Ratchet's own when not given.
    """

    suites: dict[Annotated[str, AfterValidator(_check_name)], SuiteParameters] = Field(
        default_factory=dict
    )
    python: str | None = None
