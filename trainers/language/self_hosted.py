"""``SelfHostedTrainer``: base of trainers with the model here. Shapes: B rows, T tokens."""

from __future__ import annotations

import logging
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ratchet.algorithms.kl import adapt_kl_coefficient
from ratchet.algorithms.language.losses import penalised_rewards
from ratchet.algorithms.language.metrics import log_rollout_metrics
from ratchet.algorithms.language.trajectories import batch_advantages
from ratchet.errors import ParameterError
from ratchet.language_models.engines.rollouts import ClosableEngine, RolloutEngine, make_engine
from ratchet.language_models.local.memory import device_memory, fitting_tokens
from ratchet.language_models.local.model import LanguageModel
from ratchet.parameters.language import PolicyLossParameters
from ratchet.rollouts.batch import REQUIRED_FIELDS, Batch
from ratchet.rollouts.padding import scores_of_tokens
from trainers.callbacks.base import CallbackState
from trainers.language.base import BaseTrainer, InitialModel
from trainers.language.batch_validation import check_finite, validated_batch
from trainers.language.micro_batches import split_rows, split_tokens
from trainers.language.minibatches import minibatches
from trainers.language.optimization import LanguageOptimizer
from trainers.language.policy_loss import PolicyLoss, on_device
from trainers.language.ranks.rows import RankShare, of_rows
from trainers.results import add_metrics

if TYPE_CHECKING:
    from ratchet.language_models.local.model import TokenScores
    from ratchet.language_models.local.tokenizer import ChatTokenizer
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.trajectory import Trajectory
    from trainers.language.ranks.group import Ranks

Figures = dict[str, Tensor]
_LOGGER = logging.getLogger(__name__)


class SelfHostedTrainer(BaseTrainer):
    """Base of trainers with a local model. Subclasses implement :meth:`_prepare_batch`.

    A batch is prepared; then log-probabilities under the weights before the step are computed if
    the loss needs them, and the loss is minimised in ``language.num_epochs`` passes over
    minibatches, each read ``language.micro_batch_size`` rows at a time, by default as many tokens
    as fit into a GPU's memory, which affects only rounding. Entries that a subclass adds to
    ``batch.values`` are passed to :meth:`_compute_loss`. With ``kl: {place: reward}`` a batch
    contains ``log_probs`` and ``ref_log_probs`` before the step.

    With ``language.train_service.world_size`` above 1, that number of other processes, the ranks,
    share the model, sample with the built-in engine and take the steps; batches are prepared here,
    once, and the weights are sent back. Attributes of ``self`` in a state are copied to the ranks'
    trainers, which compute the loss.
    """

    required_fields: ClassVar[tuple[str, ...]] = REQUIRED_FIELDS
    """Fields required in a prepared batch."""

    rows_together: ClassVar[int] = 1
    """The number of successive rows that belong together, such as the two of a pair."""

    reads_per_step: ClassVar[int] = 1
    """The number of times that the loss of a row reads it with gradients."""

    def _setup(self) -> None:
        self.loss_parameters = self._read_loss()
        max_tokens = int(self._config.get("max_tokens", 1))
        is_behind = self.language.mode == "one_step_behind"
        self._policy_loss = PolicyLoss(
            self.loss_parameters,
            max_tokens=max_tokens,
            is_corrected=is_behind or self.language.engine.name == "vllm",
        )
        self._reference: LanguageModel | None = None
        self._ranks: Ranks | None = None

    def _read_loss(self) -> PolicyLossParameters:
        """Read the configuration of the policy loss; for custom trainers from ``algorithm``."""
        unknown = self._config.algorithm.keys() - PolicyLossParameters.model_fields.keys()
        return self._parameters(PolicyLossParameters, "algorithm", leave_out=unknown)

    model: LanguageModel
    """The trained model."""

    share: RankShare | None = None
    """In a rank: the part of each minibatch that this trainer learns from."""

    def begin(self, initial_model: InitialModel) -> None:
        """Build the model and the engine that samples from it."""
        model, engine = initial_model.build_model(), self.language.engine
        base_dir = Path(base) if (base := initial_model.settings.base_dir) else None
        self._only_plays = initial_model.only_plays
        self._rank_seconds = initial_model.settings.rank_seconds
        self._rank_cluster = initial_model.settings.rank_cluster
        self.connect(model, make_engine(engine.name, model, engine.given, base_dir))

    def connect(self, model: LanguageModel, engine: RolloutEngine) -> None:
        """Train this model from now on; its current weights are the reference of KL."""
        self.model, self._engine = model, engine
        world_size = self.language.train_service.world_size
        if world_size > 1 and self.share is None and not self._only_plays:
            from trainers.language.ranks.group import Ranks  # torch.distributed takes seconds

            timeout, cluster = self._rank_seconds, self._rank_cluster
            self._ranks = Ranks(self, model, world_size, timeout=timeout, cluster=cluster)
            self._engine = self._ranks.engine_for(engine)
        self._reference = model.reference() if self._learns_here and self._needs_reference else None
        self._optimizer = LanguageOptimizer(self._learning_parameters(), self.language.optimizer)

    _only_plays = False
    _rank_seconds = 1800.0
    _rank_cluster: str | None = None

    @property
    def _learns_here(self) -> bool:
        """Whether this process takes the steps, and loads the other models that they need."""
        return self._ranks is None and not self._only_plays

    @property
    def _needs_reference(self) -> bool:
        """Whether log-probabilities of the initial model are needed."""
        return self._kl_coef > 0

    def _learning_parameters(self) -> list[torch.nn.Parameter]:
        """Return the optimized parameters: the model's, and a subclass's own."""
        return self.model.parameters()

    @property
    def engine(self) -> RolloutEngine:
        """Samples completions."""
        return self._engine

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    @property
    def _pad_token_id(self) -> int:
        """The model's padding token; 0 without a model, as in tests of :meth:`_prepare_batch`."""
        return self.model.pad_token_id if hasattr(self, "model") else 0

    @classmethod
    def needed_devices(cls, hyper_params: HyperParameters) -> int:
        """Return the number of ranks."""
        world_size: int = hyper_params.language.train_service.world_size
        return world_size

    # -- for subclasses to implement or override ---------------------------------------------

    @abstractmethod
    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Add the loss's inputs to a batch, mainly ``advantages`` [B, T]; also return metrics."""

    def _compute_loss(
        self, scores: TokenScores, batch: Batch, weights: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Figures]:
        """Return the rows' contributions to their minibatch's loss, and to means of figures.

        ``scores`` are the model's scores of the rows' tokens, with gradients; ``weights`` the
        tokens' weights in the loss and in figures, [B, T] each, over the complete minibatch:
        contributions are summed.
        """
        return self._policy_loss(scores, batch, weights, kl_coef=self._loss_kl_coef)

    # -- memory ------------------------------------------------------------------------------

    _micro_batch_tokens: int | None = None
    """The most tokens of a micro-batch, from the first step on; None without a limit."""

    def fitting_tokens(self) -> int | None:
        """Return the most tokens of a micro-batch on this device; None on a CPU."""
        memory = device_memory(self.model)
        if memory is None:
            return None
        return fitting_tokens(
            memory,
            self.model,
            self._learning_parameters(),
            [each for each in vars(self).values() if isinstance(each, LanguageModel)],
            reads=self.reads_per_step,
            processes=1 if self.share is None else self.share.world_size,
        )

    def _limit_micro_batches(self) -> None:
        """Choose the tokens of a micro-batch, unless a size is configured, or a choice restored."""
        if self.language.micro_batch_size or self._micro_batch_tokens:
            return
        memory = device_memory(self.model)
        if memory is not None:
            self._micro_batch_tokens = (self._ranks or self).fitting_tokens()
            chosen = self._micro_batch_tokens, memory / 2**30
            _LOGGER.info("micro-batches of at most %s tokens, chosen for %.0f GiB", *chosen)

    # -- one step ----------------------------------------------------------------------------

    def train(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Prepare a batch and minimise its loss; does nothing without trajectories."""
        metrics: dict[str, float] = {}
        if not trajectories:
            return {"training/num_trajectories": 0.0}
        self._limit_micro_batches()
        batch = Batch.from_trajectories(trajectories, self._pad_token_id)
        if self._kl_coef > 0 and self.loss_parameters.kl.place == "reward":
            self._measure_kl(batch)
        where = f"{type(self).__name__}._prepare_batch"
        batch, batch_metrics = validated_batch(self._prepare_batch(batch), where)
        log_rollout_metrics(trajectories, metrics)
        add_metrics(metrics, batch_metrics, where)  # before an update, and below with its metrics
        if not len(batch):
            return metrics | {"training/num_trajectories": 0.0, "training/num_updates": 0.0}
        batch.check_required(self.required_fields)
        check_finite(batch, self.required_fields)
        metrics |= _described("critic/advantages", batch)
        metrics |= self._update(on_device(batch, self.model.device))
        self._engine.update(self.model)
        add_metrics(metrics, batch_metrics, where)
        return metrics

    def _update(self, batch: Batch) -> dict[str, float]:
        """Minimise the batch's loss in all passes; return the means of the steps' figures."""
        if self._loss_kl_coef > 0 and "ref_log_probs" not in batch.values:
            batch.values["ref_log_probs"] = self._compute_ref_log_probs(batch)
        if self.language.num_epochs > 1 or self._minibatch_size(batch) < len(batch):
            batch.values.setdefault("old_log_probs", self._compute_old_log_probs(batch))
        step_figures = self._learn(batch) if self._ranks is None else self._ranks.learn(batch)
        names = dict.fromkeys(name for figures in step_figures for name in figures)
        metrics = {
            name: float(torch.stack([one[name] for one in step_figures if name in one]).mean())
            for name in names
        }
        metrics["training/num_trajectories"] = float(len(batch))
        metrics["training/num_updates"] = float(len(step_figures))
        if "actor/kl" in metrics and self._kl_seen is None:
            tokens = float(batch.values["loss_mask"].sum())
            self._kl_seen = metrics["actor/kl"] * tokens / len(batch)
        self._adapt_kl(metrics, len(batch))
        return metrics

    def _learn(self, batch: Batch) -> list[Figures]:
        """Take the steps of all passes; return the figures of each."""
        size, together = self._minibatch_size(batch), self.rows_together
        self._optimizer.set_progress(*self.moment.progress)
        return [
            self._step(batch if len(rows) == len(batch) else batch.select(rows))
            for epoch in range(self.language.num_epochs)
            for rows in minibatches(
                len(batch), size, epoch=epoch, moment=self.moment, together=together
            )
        ]

    def _minibatch_size(self, batch: Batch) -> int:
        size = self.language.minibatch_size or len(batch)
        return -(-size // self.rows_together) * self.rows_together

    def _step(self, batch: Batch) -> Figures:
        """Take one optimizer step on the loss of a minibatch."""
        figures: Figures = {}
        self._optimizer.zero_grad()
        for part, weights, counts in self._micro_batches(batch):
            loss, more = self._compute_loss(self._score(part), part, weights)
            if not counts:
                loss, more = loss * 0, {name: value * 0 for name, value in more.items()}
            loss.backward()  # type: ignore[no-untyped-call] # of torch
            self._optimizer.take_gradients()
            for name, value in {"actor/loss": loss.detach(), **more}.items():
                figures[name] = figures[name] + value if name in figures else value
        figures["actor/lr"] = torch.tensor(self._optimizer.lr)
        figures["actor/grad_norm"] = self._optimizer.step()
        return figures

    def _micro_batches(self, batch: Batch) -> list[tuple[Batch, tuple[Tensor, Tensor], bool]]:
        """Return this process's parts of a minibatch, their weights, and whether they count.

        All are selected before the first is read: indices are copied while the device is idle.
        """
        max_rows, max_tokens = self.language.micro_batch_size, self._micro_batch_tokens
        share, together = self.share or RankShare(), self.rows_together
        if max_rows is not None or max_tokens is None:
            parts = split_rows(len(batch), share, together=together, max_rows=max_rows)
        else:
            lengths = (batch.values["attention_mask"] != 0).sum(1).tolist()
            parts = split_tokens(lengths, max_tokens, share, together=together)
        weights, shares = self._weights(batch)
        return [
            (batch, (weights, shares), counts)
            if len(rows) == len(batch)
            else (batch.select(rows), (weights[list(rows)], shares[list(rows)]), counts)
            for rows, counts in parts
        ]

    def _weights(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the weights of a minibatch's tokens in the loss and in figures."""
        return self._policy_loss.weights(batch.values["loss_mask"])

    def _score(self, batch: Batch) -> TokenScores:
        values = batch.values
        return self.model.score(
            values["input_ids"],
            values["attention_mask"],
            values["loss_mask"],
            temperature=self._temperature,
            entropy=self.loss_parameters.entropy_coef > 0 or self._logs_entropy,
            entropy_gradient=self.loss_parameters.entropy_coef > 0,
        )

    _logs_entropy = True

    @property
    def _temperature(self) -> float:
        """The sampling temperature, at which log-probabilities are computed too."""
        return float(self._config.get("temperature", 1.0))

    # -- for use in subclasses --------------------------------------------------------------

    @of_rows
    def _compute_old_log_probs(self, batch: Batch) -> Tensor:
        """Return log π of the tokens in the loss mask before the step, [B, T]; 0 elsewhere."""
        return self._score_in_parts(self.model, batch)

    @of_rows
    def _compute_ref_log_probs(self, batch: Batch) -> Tensor:
        """Return log π_ref of the tokens in the loss mask, [B, T]; 0 elsewhere.

        Raises ParameterError without a reference, i.e. if no KL penalty is configured.
        """
        if self._reference is None:
            section = self.section or "trainer.algorithm"
            raise ParameterError(
                f"{section}.kl.coef: got 0, so no reference model is loaded; expected more than"
                f" 0 to use its log-probabilities, such as {section}.kl={{coef: 0.1, place:"
                " reward}."
            )
        return self._score_in_parts(self._reference, batch)

    def _score_in_parts(self, model: LanguageModel, batch: Batch) -> Tensor:
        """Return a model's log-probabilities, on the batch's device."""

        def read(part: Batch) -> Tensor:
            columns = [part.values[n] for n in ("input_ids", "attention_mask", "loss_mask")]
            return model.score(*columns, temperature=self._temperature).log_probs

        return self._read_in_parts(read, batch, self.language.micro_batch_size)

    def _read_in_parts(
        self, read: Callable[[Batch], Tensor], batch: Batch, max_rows: int | None = None
    ) -> Tensor:
        """Return a function's values of rows, [B, T], ``max_rows`` or as many as fit at a time."""
        ids, size = batch.values["input_ids"], max_rows or len(batch)
        if max_rows is None and self._micro_batch_tokens is not None:
            size = max(1, self._micro_batch_tokens // ids.shape[1])
        if 0 < len(batch) <= size:
            return read(batch).to(ids.device)
        rows = range(len(batch))
        parts = [read(batch.select(rows[start : start + size])) for start in rows[::size]]
        return torch.cat(parts).to(ids.device) if parts else torch.zeros_like(ids).float()

    def _reward_fn(self, batch: Batch) -> Tensor:
        """Return the rewards as token scores, [B, T]: at the last token of the loss mask."""
        return scores_of_tokens(batch.metadata["rewards"], batch.values["loss_mask"])

    def _compute_advantage(self, batch: Batch) -> Batch:
        """Set ``advantages``: the scores of each group, centred and scaled (GRPO)."""
        batch.metadata["advantages"] = batch_advantages(batch).advantage
        return batch

    def _apply_kl_penalty(self, batch: Batch, beta: float | None = None) -> Batch:
        """Subtract β·(log π − log π_ref) from each token's score: a KL(π‖π_ref) penalty."""
        beta = self._kl_coef if beta is None else beta
        values = batch.values
        if "log_probs" not in values or "ref_log_probs" not in values:
            self._measure_kl(batch)
        mask, new, old = (values[n] for n in ("loss_mask", "log_probs", "ref_log_probs"))
        scores = values["token_level_scores"]
        values["token_level_scores"] = penalised_rewards(scores, new, old, mask, coefficient=beta)
        return batch

    def _measure_kl(self, batch: Batch) -> None:
        """Add ``log_probs`` and ``ref_log_probs``, the inputs of a KL penalty in the reward."""
        values = batch.values
        values["log_probs"] = values["old_log_probs"] = self._compute_old_log_probs(batch)
        values["ref_log_probs"] = self._compute_ref_log_probs(batch)
        difference = values["log_probs"] - values["ref_log_probs"]
        self._kl_seen = float((difference * values["loss_mask"]).sum(1).mean())

    def _log_rollout_metrics(self, batch: Batch) -> None:
        """Do nothing: rollout metrics are logged with every step. For trainers that call it."""

    # -- KL penalty towards the initial model -----------------------------------------------

    _kl_seen: float | None = None
    """KL(π‖π_ref) per sequence of the current batch, once measured."""

    _adapted_kl_coef: float | None = None
    """The KL coefficient, once it has been adapted."""

    @property
    def _kl_coef(self) -> float:
        adapted = self._adapted_kl_coef
        return self.loss_parameters.kl.coef if adapted is None else adapted

    @property
    def _loss_kl_coef(self) -> float:
        return self._kl_coef if self.loss_parameters.kl.place == "loss" else 0.0

    def _adapt_kl(self, metrics: dict[str, float], sequences: int) -> None:
        """Log the KL coefficient, and adapt it if a target is set."""
        kl = self.loss_parameters.kl
        if not kl.coef:
            return
        seen, self._kl_seen = self._kl_seen, None
        metrics["critic/kl_coeff"] = self._kl_coef
        if seen is None:
            return
        metrics["critic/kl"] = seen
        if kl.target is not None:
            self._adapted_kl_coef = adapt_kl_coefficient(
                self._kl_coef, seen, target=kl.target, horizon=kl.horizon, num_samples=sequences
            )

    # -- state -------------------------------------------------------------------------------

    def take_state(self) -> dict[str, Any]:
        """Return weights, moments, the adapted KL coefficient and any limit of micro-batches.

        Contains no parameters: runs with different training options share their initial states.
        """
        return {
            "model": self.model.state_dict(),
            "optimizer": (self._ranks or self._optimizer).state_dict(),
            "adapted_kl_coef": self._adapted_kl_coef,
            **({"micro_batch_tokens": tokens} if (tokens := self._micro_batch_tokens) else {}),
        }

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`take_state`, perhaps without the optimizer."""
        self.model.load_state_dict(state["model"])
        if "optimizer" in state:
            (self._ranks or self._optimizer).load_state_dict(state["optimizer"])
        kl, adapted = self.loss_parameters.kl, state["adapted_kl_coef"]
        self._adapted_kl_coef = adapted if kl.coef > 0 and kl.target is not None else None
        self._micro_batch_tokens = state.get("micro_batch_tokens")
        self._engine.update(self.model)

    def take_weights(self) -> CallbackState:
        """Return a copy of the trained weights."""
        return CallbackState(tensors=self.model.state_dict())

    def put_weights(self, weights: CallbackState) -> None:
        """Restore the result of :meth:`take_weights`."""
        self.model.load_state_dict(weights.tensors)
        self._optimizer.read_weights()
        self._engine.update(self.model)

    def close(self) -> None:
        """End the ranks and the engine's process, if any."""
        if self._ranks is not None:
            self._ranks.close()
        if isinstance(self._engine, ClosableEngine):
            self._engine.close()

    def save_model(self, folder: Path) -> None:
        """Write the current model in Hugging Face's layout; for an adapted one, the adapter."""
        self.model.save(folder)

    def save_whole_model(self, folder: Path) -> None:
        """Write the current model with all its weights: an adapter is merged into them."""
        from ratchet.language_models.local.adapters import AdapterBase
        from ratchet.language_models.local.network import save_merged

        with tempfile.TemporaryDirectory(prefix="ratchet-model-") as name:
            saved = Path(name) / "model"
            self.model.save(saved)
            base = AdapterBase.read(saved)
            if base is None:
                shutil.move(saved, folder)
            else:
                save_merged(Path(base.folder), [saved], folder)


def _described(name: str, batch: Batch) -> dict[str, float]:
    """Return mean, extremes and standard deviation of the advantages of trained tokens."""
    if "advantages" not in batch.values:
        return {}
    advantages = batch.values["advantages"][batch.values["loss_mask"].bool()]
    if not len(advantages):
        return {}
    low, high = advantages.aminmax()
    numbers = torch.stack([advantages.mean(), advantages.std(correction=0), low, high]).tolist()
    return {
        f"{name}/{part}": n for part, n in zip(("mean", "std", "min", "max"), numbers, strict=True)
    }
