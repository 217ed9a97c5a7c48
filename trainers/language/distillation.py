"""On-policy distillation: token-level advantages from a teacher's log-probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ratchet.algorithms.language.losses import distillation_advantages
from ratchet.errors import ParameterError
from ratchet.language_models.engines.rollouts import RolloutEngine
from ratchet.language_models.local.loading import load_language_model
from ratchet.parameters.language import DistillationParameters, PolicyLossParameters
from ratchet.rollouts.batch import Batch
from trainers.language.ranks.rows import of_rows
from trainers.language.self_hosted import SelfHostedTrainer
from trainers.named import register_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.language_models.local.model import LanguageModel
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters


@register_trainer("on_policy_distillation")
class DistillationTrainer(SelfHostedTrainer):
    """Trains on a teacher's log-probabilities of the model's completions; rewards are only logged.

    See :class:`ratchet.parameters.language.DistillationParameters`.
    """

    section: ClassVar[str] = "on_policy_distillation"

    def _read_loss(self) -> PolicyLossParameters:
        self._given = self._parameters(DistillationParameters, "on_policy_distillation")
        return self._given

    @classmethod
    def check_learner(
        cls, hyper_params: HyperParameters, agents: Mapping[str, LanguageAgentParameters]
    ) -> None:
        """Refuse an experiment without a teacher."""
        if hyper_params.on_policy_distillation.teacher is None:
            raise _no_teacher()

    @classmethod
    def other_models(cls, hyper_params: HyperParameters) -> dict[str, str]:
        """Return the teacher."""
        teacher = hyper_params.on_policy_distillation.teacher
        return {} if teacher is None else {"teacher": teacher}

    def connect(self, model: LanguageModel, engine: RolloutEngine) -> None:
        """Train this model; load the teacher next to it."""
        super().connect(model, engine)
        if self._given.teacher is None:
            raise _no_teacher()
        if not self._learns_here:
            return  # the processes that take steps read it
        base = Path(str(self._config.get("base_dir") or "."))
        self._teacher = load_language_model(
            self._given.teacher, base_dir=base, device=str(model.device)
        )
        if self._teacher.tokenizer.vocabulary != model.tokenizer.vocabulary:
            raise ParameterError(
                f"on_policy_distillation.teacher: the tokenizer of {self._given.teacher} differs"
                " from the student's; expected the same, since tokens are compared."
            )

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Compare the tokens' log-probabilities with the teacher's."""
        values = batch.values
        values["old_log_probs"] = self._compute_old_log_probs(batch)
        values["teacher_log_probs"] = self._compute_teacher_log_probs(batch)
        mask = values["loss_mask"]
        values["advantages"] = distillation_advantages(
            values["old_log_probs"],
            values["teacher_log_probs"],
            mask,
            coefficient=self._given.coef,
            gamma=self._given.discount,
        )
        difference = (values["old_log_probs"] - values["teacher_log_probs"]) * mask
        return batch, {
            "distillation/teacher_kl": float(difference.detach().sum() / mask.sum().clamp(min=1))
        }

    @of_rows
    def _compute_teacher_log_probs(self, batch: Batch) -> Tensor:
        """Return the teacher's log-probability of each token, [B, T]."""
        return self._score_in_parts(self._teacher, batch)


def _no_teacher() -> ParameterError:
    return ParameterError(
        "on_policy_distillation.teacher: got none, expected a model's folder, relative to the"
        " experiment file's, or a name in Hugging Face's cache."
    )
