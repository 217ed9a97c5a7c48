"""``RemoteApiTrainer``: the model is at a training service, which plays and learns there."""

from __future__ import annotations

import hashlib
import json
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.algorithms.language.metrics import log_advantages, log_rollout_metrics
from ratchet.errors import DataError, StateError
from ratchet.language_models.endpoints import ModelAddress
from ratchet.language_models.local.rollout_engine import Completion, RolloutEngine, SampleRequest
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer
from ratchet.language_models.training_service.interface import OptimizerSettings, TrainingExample
from ratchet.language_models.training_service.steps import TrainingSteps
from ratchet.parameters.language import TINKER, PolicyLossParameters
from trainers.callbacks.base import CallbackState
from trainers.language.base import BaseTrainer, Beginning
from trainers.language.learning_rate import LearningRate
from trainers.language.minibatches import minibatches
from trainers.language.policy_loss import PolicyLoss
from trainers.language.remote_backends import make_backend
from trainers.language.remote_settings import ServiceConfig, check_loss, check_service
from trainers.language.remote_update import PolicyWeighing, update_metrics

if TYPE_CHECKING:
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.language_models.training_service.interface import TrainingService
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.trajectory import Trajectory

MADE_HERE = "small"


class RemoteApiTrainer(BaseTrainer):
    """Base of trainers whose model is at a service. Subclasses write :meth:`_prepare_trajectories`.

    What an iteration sends is known before it is sent: the steps of an iteration have a session of
    their own at the service, named by the model that they start from and by their content. So they
    are taken once, whatever is lost or killed, and an experiment that learns otherwise from some
    iteration on has sessions, and models, of its own from there.
    """

    keeps_rollouts: ClassVar[bool] = True
    has_model_here: ClassVar[bool] = False

    def _setup(self) -> None:
        service = self.language.train_service
        self._backend = make_backend(service, self._config.get("base_dir"))
        given = ServiceConfig.of(service)
        self.loss_parameters = self._read_loss()
        check_loss(self.loss_parameters, self.section or "language.algorithm", service.backend)
        self._loss = given.loss(self.loss_parameters)
        most = int(self._config.get("max_tokens", 1))
        behind = self.language.mode == "one_step_behind" and not self._loss.of_sampler
        self._policy_loss = PolicyLoss(self.loss_parameters, max_tokens=most, is_behind=behind)
        self._optimizer = given.optimizer(self.language.optimizer)
        self._beginning: Beginning | None = None
        self._session_id, self._model, self._steps = "", "", 0
        self._first_session = ""  # which learns nothing; before there is another
        self._base: str | None = None
        self._built: LanguageModel | None = None
        self._tokenizer: ChatTokenizer | None = None

    def _read_loss(self) -> PolicyLossParameters:
        """Read how the policy's loss is made; of a trainer of one's own from ``algorithm``."""
        unknown = self._config.algorithm.keys() - PolicyLossParameters.model_fields.keys()
        given = {name: v for name, v in self._config.algorithm.items() if name not in unknown}
        return PolicyLossParameters.model_validate(given)

    @classmethod
    def check_learner(cls, hyper_params: HyperParameters) -> None:
        """Refuse what a training service cannot do."""
        check_service(hyper_params)

    @classmethod
    def needed_packages(cls, hyper_params: HyperParameters) -> Sequence[str]:
        """Return the client's package, where the service is asked through one."""
        return ("tinker",) if hyper_params.language.train_service.backend == TINKER else ()

    @classmethod
    def other_models(cls, hyper_params: HyperParameters) -> dict[str, str]:
        """Return the folder of a tokenizer that the service doesn't give."""
        given = ServiceConfig.of(hyper_params.language.train_service).tokenizer
        return {} if given is None else {"tokenizer": given}

    # -- what a subclass writes --------------------------------------------------------------

    @abstractmethod
    def _prepare_trajectories(
        self, trajectories: list[Trajectory], metrics: dict[str, Any]
    ) -> list[Trajectory]:
        """Return what is learned from, each with ``advantage`` or ``token_advantages`` set.

        ``metrics`` are added to.
        """

    # -- the model and its service -----------------------------------------------------------

    def begin(self, beginning: Beginning) -> None:
        """Keep where the model comes from; the service is asked when it is first needed."""
        self._beginning = beginning

    @property
    def engine(self) -> RolloutEngine:
        """What writes answers: the service, with the model that was saved last."""
        return _ServiceEngine(self)

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's, as the service has it."""
        if self._tokenizer is None:
            trained = "" if self._backend.names_only_bases else self._model
            model = trained or self._base_model()
            self._tokenizer = self._backend.tokenizer(model)
        return self._tokenizer

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Have the service answer with the model that was saved last."""
        model = self._model or self._base_model()
        if not self._session_id and not self._first_session:
            self._first_session = self._backend.first_sampler(lambda: self._session("play"))
        sampler = self._session_id or self._first_session
        return self._backend.sample(sampler, model, requests)

    def _session(self, content: str) -> TrainingService:
        """Open the session, or find it, in which this content is learned from this model."""
        lora = self._begun.agent.lora
        asked: dict[str, object] = {
            "model": self._model or self._base_model(),
            "resume": bool(self._model),
            "seed": self.moment.seed,
            "lora_rank": lora.rank or 0,
            "lora_alpha": lora.alpha,
        }
        named = json.dumps([asked, self._begun.intent, content], sort_keys=True)
        intent = f"language:{hashlib.sha256(named.encode()).hexdigest()}"
        return self._backend.open({**asked, "intent": intent})

    @property
    def _begun(self) -> Beginning:
        if self._beginning is None:
            raise StateError(f"{type(self).__name__}: there is no model yet; call begin() first.")
        return self._beginning

    @property
    def _is_made_here(self) -> bool:
        agent = self._begun.agent
        return agent.model == MADE_HERE or agent.warm_up.num_steps > 0

    def _base_model(self) -> str:
        """Return the service's name of the model at the beginning, which is brought if need be."""
        if self._base is not None:
            return self._base
        model = self._begun.agent.model
        folder = Path(self._begun.settings.base_dir or ".") / model
        if self._is_made_here:
            with tempfile.TemporaryDirectory(prefix="ratchet-model-") as name:
                self.save_model(Path(name))
                self._base = self._upload(Path(name), MADE_HERE)
            self._built = None
        elif folder.is_dir():
            self._base = self._upload(folder, folder.resolve().name)
        else:
            self._base = model
        return self._base

    def _upload(self, folder: Path, name: str) -> str:
        return self._backend.bring(folder, name)

    def save_model(self, folder: Path) -> None:
        """Write the model at the beginning, where it is made here; else it is where it was."""
        if self._is_made_here:
            if self._built is None:
                self._built = self._begun.build_model()
            self._built.save(folder)

    # -- one iteration -----------------------------------------------------------------------

    def train(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Prepare trajectories and have the service learn from them."""
        if not trajectories:
            return {"training/num_trajectories": 0.0}
        metrics: dict[str, Any] = {}
        log_rollout_metrics(trajectories, metrics)
        prepared = self._prepare_trajectories(trajectories, metrics)
        log_advantages(prepared, metrics)
        metrics = {name: float(value) for name, value in metrics.items()}
        taken = [one for one in prepared if one.num_written]
        metrics["training/num_trajectories"] = float(len(taken))
        if not taken:
            return metrics | {"training/num_updates": 0.0}
        steps = self._update(taken)
        session = self._session(steps.digest)
        self._model, done = steps.take(session, "trained")
        self._session_id = self._backend.sampler(session)
        self._steps += len(done)
        found = update_metrics(steps, done)
        return metrics | found | {"training/num_updates": float(len(done))}

    def _update(self, trajectories: Sequence[Trajectory]) -> TrainingSteps:
        """Return all that an iteration learns from these trajectories."""
        rows, language = len(trajectories), self.language
        size = language.minibatch_size or rows
        batches = [
            places.tolist()
            for epoch in range(language.num_epochs)
            for places in minibatches(rows, size, epoch=epoch, moment=self.moment)
        ]
        rate = LearningRate(self._optimizer)
        rate.set_progress(self.moment.iteration, self.moment.num_iterations)
        given = self._optimizer
        settings = [
            OptimizerSettings(
                learning_rate=rate.after(self._steps + number),
                beta1=given.beta1,
                beta2=given.beta2,
                eps=given.eps,
                weight_decay=given.weight_decay,
                max_grad_norm=given.max_grad_norm,
            )
            for number in range(len(batches))
        ]
        examples = [_example(one) for one in trajectories]
        asks_old = self._backend.asks_old and not self._loss.of_sampler
        weighing = PolicyWeighing(self._policy_loss, asks_old)
        micro = language.micro_batch_size
        return TrainingSteps(examples, batches, settings, self._loss, micro, weighing)

    # -- state -------------------------------------------------------------------------------

    def take_state(self) -> dict[str, Any]:
        """Return which of the service's models is played with, and how many steps made it."""
        return {"session": self._session_id, "model": self._model, "steps": self._steps}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`take_state` returned."""
        self._session_id, self._model = str(state["session"]), str(state["model"])
        self._steps = int(state["steps"])

    def take_weights(self) -> CallbackState:
        """Return which of the service's models is played with; the service keeps all of them."""
        return CallbackState({"session": self._session_id, "model": self._model})

    def put_weights(self, weights: CallbackState) -> None:
        """Play with the model that :meth:`take_weights` returned."""
        self._session_id, self._model = weights.values["session"], weights.values["model"]

    def address(self) -> ModelAddress | None:
        """Return the model that was saved last at its service."""
        return self._backend.address(self._model or self._base_model())

    def close(self) -> None:
        """Let go of connections; what the service has stays."""
        self._backend.close()


class _ServiceEngine:
    """Asks a trainer's service."""

    def __init__(self, trainer: RemoteApiTrainer) -> None:
        self._trainer = trainer

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Answer requests, in their order."""
        return self._trainer.sample(requests)

    def update(self, model: LanguageModel) -> None:
        """Do nothing: the service has the model."""


def _example(trajectory: Trajectory) -> TrainingExample:
    """Return a trajectory with its advantages and its sampler's log-probabilities."""
    given = trajectory.token_advantages
    if given is None:
        if trajectory.advantage is None:
            raise DataError(
                f"trajectory of the task {trajectory.task_id!r}: has neither advantage nor"
                " token_advantages, expected _prepare_trajectories to set one of them."
            )
        given = [float(trajectory.advantage)] * len(trajectory)
    shown = trajectory.loss_mask
    return TrainingExample(
        tokens=tuple(trajectory.tokens),
        loss_mask=tuple(shown),
        advantages=tuple(value if mask else 0.0 for value, mask in zip(given, shown, strict=True)),
        log_probs=tuple(trajectory.logprobs),
    )
