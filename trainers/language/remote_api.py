"""``RemoteApiTrainer``: base of trainers whose model is sampled and trained at a service."""

from __future__ import annotations

import hashlib
import json
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.algorithms.language.metrics import log_advantages, log_rollout_metrics
from ratchet.errors import DataError, StateError
from ratchet.language_models.endpoints import EMBEDDED, ModelAddress
from ratchet.language_models.engines.rollouts import Completion, RolloutEngine, SampleRequest
from ratchet.language_models.local.model_locations import find_model
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.language_models.training_service.client import RatchetClient
from ratchet.language_models.training_service.interface import (
    OptimizerSettings,
    SessionSettings,
    TrainingExample,
)
from ratchet.language_models.training_service.steps import TrainingSteps
from ratchet.language_models.training_service.tinker_client import TinkerClient
from ratchet.parameters.language import TINKER, PolicyLossParameters
from ratchet.scenarios.language_task.parameters import SMALL
from trainers.callbacks.base import CallbackState
from trainers.language.base import BaseTrainer, InitialModel
from trainers.language.learning_rate import LearningRate
from trainers.language.minibatches import minibatches
from trainers.language.policy_loss import PolicyLoss
from trainers.language.remote_settings import ServiceConfig, check_loss, check_service
from trainers.language.remote_update import PolicyWeighing, update_metrics

if TYPE_CHECKING:
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.language_models.training_service.interface import TrainingService
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters


class RemoteApiTrainer(BaseTrainer):
    """Base of trainers with a remote model. Subclasses implement :meth:`_prepare_trajectories`.

    The complete content of an iteration is determined before it is sent: each iteration's steps
    have a separate session at the service, identified by the model that they start from and by
    their content. So they are executed once despite lost responses and kills, and an
    experiment that trains differently from some iteration on has its own sessions and models from
    there.
    """

    traits = replace(BaseTrainer.traits, is_remote=True, loads_agents=False, supports_phases=False)

    def _setup(self) -> None:
        service = self.language.train_service
        self._client: RatchetClient | TinkerClient
        if service.backend == TINKER:
            self._client = TinkerClient(service.url, service.api_key_name, of_run=True)
        else:
            self._client = RatchetClient(service.url or EMBEDDED, service.api_key_name)
        config = self._service_config = ServiceConfig.of(service)
        self.loss_parameters = self._read_loss()
        check_loss(self.loss_parameters, self.section or "language.algorithm", service.backend)
        self._loss = config.loss(self.loss_parameters)
        max_tokens = int(self._config.get("max_tokens", 1))
        is_behind = self.language.mode == "one_step_behind" and not self._loss.of_sampler
        self._policy_loss = PolicyLoss(
            self.loss_parameters, max_tokens=max_tokens, is_corrected=is_behind
        )
        self._optimizer = config.optimizer(self.language.optimizer)
        self._initial: InitialModel | None = None
        self._session_id, self._model, self._steps = "", "", 0
        self._base: str | None = None
        self._built: LanguageModel | None = None
        self._tokenizer: ChatTokenizer | None = None

    def _read_loss(self) -> PolicyLossParameters:
        """Read the configuration of the policy loss; for custom trainers from ``algorithm``."""
        unknown = self._config.algorithm.keys() - PolicyLossParameters.model_fields.keys()
        loss_options = {
            name: v for name, v in self._config.algorithm.items() if name not in unknown
        }
        return PolicyLossParameters.model_validate(loss_options)

    @classmethod
    def check_learner(
        cls, hyper_params: HyperParameters, agents: Mapping[str, LanguageAgentParameters]
    ) -> None:
        """Refuse options that a training service does not support."""
        check_service(hyper_params, agents)

    @classmethod
    def required_packages(cls, hyper_params: HyperParameters) -> Sequence[str]:
        """Return the client's package if the backend requires one."""
        return ("tinker",) if hyper_params.language.train_service.backend == TINKER else ()

    @classmethod
    def other_models(cls, hyper_params: HyperParameters) -> dict[str, str]:
        """Return the folder of a tokenizer that the service doesn't provide."""
        tokenizer = ServiceConfig.of(hyper_params.language.train_service).tokenizer
        return {} if tokenizer is None else {"tokenizer": tokenizer}

    # -- for subclasses ----------------------------------------------------------------------

    @abstractmethod
    def _prepare_trajectories(
        self, trajectories: list[Trajectory], metrics: dict[str, Any]
    ) -> list[Trajectory]:
        """Return the trajectories to train on, with ``advantage`` or ``token_advantages`` set.

        Add to ``metrics``.
        """

    # -- the model and its service -----------------------------------------------------------

    def begin(self, initial_model: InitialModel) -> None:
        """Store the source of the model; the service is called on first use."""
        self._initial = initial_model

    @property
    def engine(self) -> RolloutEngine:
        """Samples completions at the service, with the model saved last."""
        return _ServiceEngine(self)

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer, from the service; a ``tinker`` service provides none."""
        if self._tokenizer is None:
            if isinstance(self._client, TinkerClient):
                base_dir = Path(self._config.get("base_dir") or ".")
                location = self._service_config.tokenizer or self._base_model()
                self._tokenizer = ChatTokenizer(find_model(location, base_dir))
            else:
                with tempfile.TemporaryDirectory(prefix="ratchet-tokenizer-") as folder:
                    model = self._model or self._base_model()
                    self._client.download_tokenizer(model, Path(folder))
                    self._tokenizer = ChatTokenizer(Path(folder))
        return self._tokenizer

    def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Sample completions at the service with the model saved last."""
        model = self._model or self._base_model()
        return self._client.sample(self._session_id, model, requests)

    def _session(self, content: str) -> TrainingService:
        """Open or find the session in which this model is trained on this content."""
        lora = self._initial_model.agent.lora
        settings = SessionSettings(
            model=self._model or self._base_model(),
            resume=bool(self._model),
            seed=self.moment.seed,
            lora_rank=lora.rank or 0,
            lora_alpha=lora.alpha,
        )
        options = {name: option for name, option in asdict(settings).items() if name != "intent"}
        named = json.dumps([options, self._initial_model.intent, content], sort_keys=True)
        intent = f"language:{hashlib.sha256(named.encode()).hexdigest()}"
        return self._client.open(replace(settings, intent=intent))

    @property
    def _initial_model(self) -> InitialModel:
        if self._initial is None:
            raise StateError(f"{type(self).__name__}: no model yet; call begin() first.")
        return self._initial

    @property
    def _is_built_here(self) -> bool:
        agent = self._initial_model.agent
        return agent.model == SMALL or agent.warm_up.num_steps > 0

    def _base_model(self) -> str:
        """Return the service's name of the initial model, which is uploaded if necessary."""
        if self._base is not None:
            return self._base
        model = self._initial_model.agent.model
        folder = Path(self._initial_model.settings.base_dir or ".") / model
        if self._is_built_here:
            with tempfile.TemporaryDirectory(prefix="ratchet-model-") as name:
                self.save_model(Path(name))
                self._base = self._client.upload(Path(name), SMALL)
            self._built = None
        elif folder.is_dir():
            self._base = self._client.upload(folder, folder.resolve().name)
        else:
            self._base = model
        return self._base

    def save_model(self, folder: Path) -> None:
        """Write the initial model if it is built here; otherwise it is already stored."""
        if self._is_built_here:
            if self._built is None:
                self._built = self._initial_model.build_model()
            self._built.save(folder)

    # -- one iteration -----------------------------------------------------------------------

    def train(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Prepare trajectories and train on them at the service."""
        if not trajectories:
            return {"training/num_trajectories": 0.0}
        metrics: dict[str, Any] = {}
        log_rollout_metrics(trajectories, metrics)
        prepared = self._prepare_trajectories(trajectories, metrics)
        log_advantages(prepared, metrics)
        metrics = {name: float(value) for name, value in metrics.items()}
        trainable = [one for one in prepared if one.num_written]
        metrics["training/num_trajectories"] = float(len(trainable))
        if not trainable:
            return metrics | {"training/num_updates": 0.0}
        steps = self._update(trainable)
        session = self._session(steps.digest)
        self._model, done = steps.take(session, "trained")
        self._session_id = self._client.sampler(session)
        self._steps += len(done)
        step_metrics = update_metrics(steps, done)
        return metrics | step_metrics | {"training/num_updates": float(len(done))}

    def _update(self, trajectories: Sequence[Trajectory]) -> TrainingSteps:
        """Return the complete training steps of an iteration on these trajectories."""
        rows, language = len(trajectories), self.language
        size = language.minibatch_size or rows
        batches = [
            batch.tolist()
            for epoch in range(language.num_epochs)
            for batch in minibatches(rows, size, epoch=epoch, moment=self.moment)
        ]
        rate = LearningRate(self._optimizer)
        rate.set_progress(*self.moment.progress)
        optimizer = self._optimizer
        settings = [
            OptimizerSettings(
                learning_rate=rate.after(self._steps + number),
                beta1=optimizer.beta1,
                beta2=optimizer.beta2,
                eps=optimizer.eps,
                weight_decay=optimizer.weight_decay,
                max_grad_norm=optimizer.max_grad_norm,
            )
            for number in range(len(batches))
        ]
        examples = [_example(one) for one in trajectories]
        asks_old = self._client.asks_old and not self._loss.of_sampler
        weighing = PolicyWeighing(self._policy_loss, asks_old)
        micro = language.micro_batch_size
        return TrainingSteps(examples, batches, settings, self._loss, micro, weighing)

    # -- state -------------------------------------------------------------------------------

    def take_state(self) -> dict[str, Any]:
        """Return the service's model used for sampling, and the number of its training steps."""
        return {"session": self._session_id, "model": self._model, "steps": self._steps}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`take_state`."""
        self._session_id, self._model = str(state["session"]), str(state["model"])
        self._steps = int(state["steps"])

    def take_weights(self) -> CallbackState:
        """Return the service's model used for sampling; the service stores all models."""
        return CallbackState({"session": self._session_id, "model": self._model})

    def put_weights(self, weights: CallbackState) -> None:
        """Sample with the model of :meth:`take_weights`."""
        self._session_id, self._model = weights.values["session"], weights.values["model"]

    def address(self) -> ModelAddress | None:
        """Return the address of the model saved last at its service."""
        return self._client.address(self._model or self._base_model())

    def close(self) -> None:
        """Release connections; models and sessions at the service remain."""
        self._client.close()


class _ServiceEngine:
    """Samples through a trainer's service."""

    def __init__(self, trainer: RemoteApiTrainer) -> None:
        self._trainer = trainer

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return completions in the order of the requests."""
        return self._trainer.sample(requests)

    def update(self, model: LanguageModel) -> None:
        """Do nothing: the service has the weights."""


def _example(trajectory: Trajectory) -> TrainingExample:
    """Return a trajectory with its advantages and its sampler's log-probabilities."""
    advantages = trajectory.token_advantages
    if advantages is None:
        if trajectory.advantage is None:
            raise DataError(
                f"trajectory of the task {trajectory.task_id!r}: got neither advantage nor"
                " token_advantages, expected _prepare_trajectories to set one of them."
            )
        advantages = [float(trajectory.advantage)] * len(trajectory)
    loss_mask = trajectory.loss_mask
    return TrainingExample(
        tokens=tuple(trajectory.tokens),
        loss_mask=tuple(loss_mask),
        advantages=tuple(
            value if mask else 0.0 for value, mask in zip(advantages, loss_mask, strict=True)
        ),
        log_probs=tuple(trajectory.logprobs),
    )
