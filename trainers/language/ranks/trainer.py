"""The interface of trainers that ranks use, which ``SelfHostedTrainer`` implements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch import Tensor, nn

    from ratchet.language_models.local.model import LanguageModel
    from ratchet.language_models.local.rollout_engine import RolloutEngine
    from ratchet.parameters.language import LanguageParameters
    from ratchet.rollouts.batch import Batch
    from trainers.language.base import TrainingPosition
    from trainers.language.optimization import LanguageOptimizer
    from trainers.language.policy_loss import Figures
    from trainers.language.ranks.share import RankShare


class RowShardedMethod(Protocol):
    """Calls a trainer's method on parts of a batch's rows."""

    def read_rows(self, method: str, batch: Batch) -> Tensor:
        """Return the method's result for all rows."""
        ...


class RankTrainer(Protocol):
    """A trainer that takes steps itself or through ranks."""

    language: LanguageParameters
    model: LanguageModel
    moment: TrainingPosition
    share: RankShare | None
    _config: DictConfig
    _optimizer: LanguageOptimizer

    @property
    def _ranks(self) -> RowShardedMethod | None: ...

    def connect(self, model: LanguageModel, engine: RolloutEngine) -> None:
        """Train this model from now on."""
        ...

    def _learning_parameters(self) -> list[nn.Parameter]: ...

    def _learn(self, batch: Batch) -> list[Figures]: ...
