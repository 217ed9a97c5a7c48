"""Interface of trainers whose training is split into stored, resumable stages.

Implemented by the tensor trainers; used by the tasks that run them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import CheckPointNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict import TensorDictBase
    from torch import Tensor

    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.transcript_content import Transcript

FolderOf = Callable[[str], Path]
"""Maps a stage's key to the folder of the state that the stage ended with."""
Metrics = dict[str, float]
Table = dict[str, list[Any]]
TEST_PREFIX = "test_"
"""Prefix of the recorded names of a test's metrics."""


@dataclass(frozen=True)
class TestResult:
    """Results of a test: means over datapoints, and a table.

    The table: column → one value per datapoint, in the order of ``datapoint_id``. ``films`` are
    GIFs of the first episodes, if requested; ``transcripts`` are the messages, if the report
    shows them.
    """

    __test__ = False  # not a test case

    metrics: Metrics
    table: Table
    films: tuple[bytes, ...] = ()
    transcripts: Sequence[Transcript] = ()


@dataclass(frozen=True)
class PretrainResult:
    """Result of pretraining one agent's body, or of its imitation learning (body and policy).

    ``weights``: name of a parameter or buffer → its value; ``metrics``: one mapping per epoch or
    iteration; ``table``: the predictions for the test set after pretraining, column → one value
    per datapoint.
    """

    weights: dict[str, Tensor]
    metrics: list[Metrics] = field(default_factory=list)
    table: Table = field(default_factory=dict)

    def save(self, directory: str | Path) -> None:
        """Write the result into a folder, without pickle."""
        from safetensors.torch import save_file

        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in self.weights.items()},
            directory / "weights.safetensors",
        )
        text = json.dumps({"metrics": self.metrics, "table": self.table}, sort_keys=True)
        (directory / "pretrain.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> PretrainResult:
        """Read the files of :meth:`save`.

        Raises CheckPointNotFoundError if the folder has none.
        """
        from safetensors.torch import load_file

        path = Path(directory) / "pretrain.json"
        if not path.is_file():
            raise CheckPointNotFoundError(f"no pretrained agent in {directory}: no {path.name}.")
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(load_file(Path(directory) / "weights.safetensors"), **content)


class StagedTrainer(ABC):
    """A trainer whose training can be split anywhere between iterations.

    The result is the same bit for bit, regardless of the split and of whether the state is
    saved and loaded at it.
    """

    State: ClassVar[type[Any]]
    phase: Phase | None = None
    """The phase of the experiment that this trainer runs; the parameters are the phase's."""

    def take_over(
        self,
        folder: Path,
        pool: Mapping[tuple[str, int], Path],
        fresh: Mapping[str, Path],
    ) -> None:
        """Start with the agents of a state saved by a trainer with other parameters.

        ``pool``: agent and iteration → the folder of a state with an earlier version of it;
        ``fresh``: agent → the folder of the state whose weights it starts with instead.
        """
        raise NotImplementedError(f"{type(self).__name__} does not support phases; got {folder}.")

    @classmethod
    def supports_stages(cls) -> bool:
        """Return whether stages are equivalent to :meth:`Trainer.train`.

        They are not if a subclass overrides ``train`` or the loops; such a trainer runs as one
        stage.
        """
        return True

    @classmethod
    def count_train_iterations(cls, hyper_params: HyperParameters) -> int:
        """Return the number of training iterations, before any component is built."""
        return int(hyper_params.rl.num_iterations)

    def sample_rollouts(self, iteration: int) -> TensorDictBase:
        """Collect an iteration's rollouts as training does, without learning from them.

        The state, which must be the iteration's initial one, stays unchanged.
        """
        raise NotImplementedError(f"{type(self).__name__} samples no rollouts; got {iteration}.")

    @classmethod
    def pretrained_agent_names(cls, hyper_params: HyperParameters) -> list[str]:
        """Return the agents to :meth:`pretrain`, before any component is built."""
        return []

    @property
    @abstractmethod
    def num_train_iterations(self) -> int:
        """The number of training iterations."""

    @abstractmethod
    def initial_state(self) -> Any:  # noqa: ANN401 -- each family has its own state
        """Create the state before any training, and continue from it."""

    @property
    @abstractmethod
    def state(self) -> Any:  # noqa: ANN401
        """A copy of the state that the next iteration continues from."""

    @state.setter
    @abstractmethod
    def state(self, state: Any) -> None:  # noqa: ANN401
        """Continue from a state."""

    def save_state(self, folder: Path, key: str) -> None:
        """Write the state into a folder, as the result of the stage with the key.

        A trainer with large states may omit content stored by earlier stages, and record that
        the rest is in this folder.
        """
        self.state.save(folder)

    def load_state(self, folder: Path, key: str, folder_of: FolderOf) -> None:
        """Continue from the state that :meth:`save_state` wrote.

        ``folder_of`` finds the states of earlier stages, to which this one may refer.
        """
        self.state = type(self).State.load(folder)

    @property
    def pretrained_agents(self) -> list[str]:
        """The agents to :meth:`pretrain`, once each, before training."""
        return []

    def pretrain(self, agent_name: str) -> PretrainResult:
        """Train an agent's body on its own from the initial state; the state is not changed."""
        raise NotImplementedError(f"{type(self).__name__} does not pretrain; got {agent_name!r}.")

    def load_pretrained(self, agent_name: str, result: PretrainResult) -> None:
        """Load the result of :meth:`pretrain` into the state."""
        raise NotImplementedError(f"{type(self).__name__} does not pretrain; got {agent_name!r}.")

    def imitate(self, agent_name: str, files: Sequence[Path] = ()) -> PretrainResult:
        """Train an agent to imitate its demonstrator, from the current state, which is not changed.

        ``files`` are the rollouts of a run, if it imitates those.
        """
        raise NotImplementedError(f"{type(self).__name__} does not imitate; got {agent_name!r}.")

    def load_imitated(self, agent_name: str, result: PretrainResult) -> None:
        """Load the result of :meth:`imitate` into the state."""
        raise NotImplementedError(f"{type(self).__name__} does not imitate; got {agent_name!r}.")

    @abstractmethod
    def run_iterations(self, start: int, stop: int) -> list[Metrics]:
        """Run iterations [start, stop), changing the state; ``start`` must be the state's.

        Returns fewer metrics if a callback stopped the run.
        """

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has ended the training: the remaining iterations are skipped."""
        return False

    @abstractmethod
    def run_test(self, dataset: str = "test") -> TestResult:
        """Test the current agents, without changing the state."""

    def run_sampled_test(self, dataset: str = "test") -> TestResult:
        """Test like :meth:`run_test`, with sampled actions regardless of the parameters."""
        raise NotImplementedError(f"{type(self).__name__} samples no actions; got {dataset!r}.")

    def evaluate(self, dataset: str) -> TestResult:
        """Test like :meth:`run_test`, within training and without calling callbacks."""
        return self.run_test(dataset)

    @classmethod
    @abstractmethod
    def stage_key_parameters(
        cls, hyper_params: HyperParameters, stage: str, agent_name: str | None = None
    ) -> dict[str, Any]:
        """Return the parameters that a stage reads, as plain data.

        Stages are ``"initial_state"``, ``"pretrain"`` (of an agent), ``"imitate"``, ``"train"`` and
        ``"test"``.
        """
