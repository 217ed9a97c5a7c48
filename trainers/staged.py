"""What a trainer offers so that its training can be cut into stored, resumable stages.

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
"""Gives the folder of the state that a stage ended with, by the stage's key."""
Metrics = dict[str, float]
Table = dict[str, list[Any]]
TEST_PREFIX = "test_"
"""What the names of a test's metrics begin with where they are recorded."""


@dataclass(frozen=True)
class TestResult:
    """What a test found: means over datapoints, and a table.

    The table: column → one value per datapoint, in the order of ``datapoint_id``. ``films`` are
    GIFs of the first episodes, if they were asked for; ``transcripts`` what was said, where the
    report shows that.
    """

    __test__ = False  # not a test case, whatever its name

    metrics: Metrics
    table: Table
    films: tuple[bytes, ...] = ()
    transcripts: Sequence[Transcript] = ()


@dataclass(frozen=True)
class PretrainResult:
    """What pretraining made of one agent's body, or imitation of its body and policy.

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
        """Read what :meth:`save` wrote.

        Raises CheckPointNotFoundError if there is none in the folder.
        """
        from safetensors.torch import load_file

        path = Path(directory) / "pretrain.json"
        if not path.is_file():
            raise CheckPointNotFoundError(f"no pretrained agent in {directory}: no {path.name}.")
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(load_file(Path(directory) / "weights.safetensors"), **content)


class StagedTrainer(ABC):
    """A trainer whose training can be cut anywhere between iterations.

    However the iterations are cut, and whether or not the state is saved and loaded in
    between, the result is the same bit for bit.
    """

    State: ClassVar[type[Any]]
    phase: Phase | None = None
    """The phase of the experiment that this trainer is made for; the parameters are the phase's."""

    @classmethod
    def supports_phases(cls) -> bool:
        """Return whether an experiment with this trainer may have ``phases``."""
        return False

    def take_over(
        self,
        folder: Path,
        pool: Mapping[tuple[str, int], Path],
        fresh: Mapping[str, Path],
    ) -> None:
        """Begin with the agents of a state that a trainer with other parameters has saved.

        ``pool``: agent and iteration → the folder of a state that has an earlier self of it;
        ``fresh``: agent → the folder of the state whose weights it begins with instead.
        """
        raise NotImplementedError(f"{type(self).__name__} knows no phases; got {folder}.")

    @classmethod
    def supports_stages(cls) -> bool:
        """Return whether stages do what :meth:`Trainer.train` does.

        They do not once a subclass has its own ``train`` or its own loops; such a trainer is
        run as one stage.
        """
        return True

    @classmethod
    def count_train_iterations(cls, hyper_params: HyperParameters) -> int:
        """Return the number of training iterations, before anything of an experiment is built."""
        return int(hyper_params.rl.num_iterations)

    @classmethod
    def samples_rollouts(cls) -> bool:
        """Return whether :meth:`sample_rollouts` can be asked for."""
        return False

    def sample_rollouts(self, iteration: int) -> TensorDictBase:
        """Play an iteration's rollouts as training plays them, without learning from them.

        The state, which must be the one that the iteration begins with, stays as it is.
        """
        raise NotImplementedError(f"{type(self).__name__} plays no rollouts; got {iteration}.")

    @classmethod
    def pretrained_agent_names(cls, hyper_params: HyperParameters) -> list[str]:
        """Return whom :meth:`pretrain` is to be called for, before anything is built."""
        return []

    @classmethod
    def imitating_agent_names(cls, hyper_params: HyperParameters) -> list[str]:
        """Return whom :meth:`imitate` is to be called for, before anything is built."""
        return []

    @property
    @abstractmethod
    def num_train_iterations(self) -> int:
        """The number of training iterations."""

    @abstractmethod
    def initial_state(self) -> Any:  # noqa: ANN401 -- each family has its own state
        """Make the state before any training, and continue from it."""

    @property
    @abstractmethod
    def state(self) -> Any:  # noqa: ANN401
        """What the next iteration continues from; a copy."""

    @state.setter
    @abstractmethod
    def state(self, state: Any) -> None:  # noqa: ANN401
        """Continue from a state."""

    def save_state(self, folder: Path, key: str) -> None:
        """Write the state into a folder, as what the stage of a key ends with.

        A trainer with much to keep may leave out what earlier stages have, and remember that the
        rest lies here.
        """
        self.state.save(folder)

    def load_state(self, folder: Path, key: str, folder_of: FolderOf) -> None:
        """Continue from the state that :meth:`save_state` wrote.

        ``folder_of`` finds the states of earlier stages, to which this one may refer.
        """
        self.state = type(self).State.load(folder)

    @property
    def pretrained_agents(self) -> list[str]:
        """The agents that :meth:`pretrain` is to be called for, once each, before training."""
        return []

    def pretrain(self, agent_name: str) -> PretrainResult:
        """Train an agent's body alone, starting from the initial state; changes no state."""
        raise NotImplementedError(f"{type(self).__name__} pretrains nobody; got {agent_name!r}.")

    def load_pretrained(self, agent_name: str, result: PretrainResult) -> None:
        """Put what :meth:`pretrain` made into the state."""
        raise NotImplementedError(f"{type(self).__name__} pretrains nobody; got {agent_name!r}.")

    def imitate(self, agent_name: str, files: Sequence[Path] = ()) -> PretrainResult:
        """Have an agent learn what its model does, starting from the state; changes no state.

        ``files`` are the rollouts of a run, where it imitates those.
        """
        raise NotImplementedError(f"{type(self).__name__}: nobody imitates; got {agent_name!r}.")

    def load_imitated(self, agent_name: str, result: PretrainResult) -> None:
        """Put what :meth:`imitate` made into the state."""
        raise NotImplementedError(f"{type(self).__name__}: nobody imitates; got {agent_name!r}.")

    @abstractmethod
    def run_iterations(self, start: int, stop: int) -> list[Metrics]:
        """Run iterations [start, stop), changing the state; ``start`` must be the state's.

        Their metrics are fewer where a callback has stopped the run.
        """

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has ended the training: iterations that are left do nothing."""
        return False

    @classmethod
    def samples_tests(cls) -> bool:
        """Return whether there is :meth:`run_sampled_test`: agents may draw their actions."""
        return False

    @abstractmethod
    def run_test(self, dataset: str = "test") -> TestResult:
        """Test the agents as they are, without changing the state."""

    def run_sampled_test(self, dataset: str = "test") -> TestResult:
        """Test as :meth:`run_test` does, by actions that are drawn, whatever the parameters say."""
        raise NotImplementedError(f"{type(self).__name__} draws no actions; got {dataset!r}.")

    def evaluate(self, dataset: str) -> TestResult:
        """Test as :meth:`run_test` does, as a part of training that no callback is told of."""
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
