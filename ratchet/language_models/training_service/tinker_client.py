"""A training session at a ``tinker`` service, through that service's client.

The client numbers and repeats its requests, but only while its session lives: a request of an ended
process cannot be repeated. After an interruption, open a session from the last weights that
:meth:`TinkerTrainingService.save_weights` saved with their optimizer.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ratchet.errors import LanguageModelError, MissingKeyError, ParameterError, StateError
from ratchet.language_models.endpoints import EMBEDDED, Endpoint, ModelAddress
from ratchet.language_models.engines.rollouts import Completion, SampleRequest
from ratchet.language_models.training_service.interface import (
    RUN_METADATA,
    ForwardBackward,
    OptimizerSettings,
    SessionSettings,
    TrainingExample,
    TrainingService,
)
from ratchet.lazy import require_packages

KEY_VARIABLE = "TINKER_API_KEY"
_LOCAL_KEY = "tml-none"
_Answer = TypeVar("_Answer")


def connect_tinker(
    url: str | None,
    *,
    model: str,
    lora_rank: int = 32,
    seed: int = 0,
    resume: bool = False,
    api_key_name: str | None = None,
) -> TinkerTrainingService:
    """Open a session; see :class:`SessionSettings` and :class:`TinkerClient`."""
    settings = SessionSettings(model, lora_rank, seed=seed, resume=resume)
    return TinkerClient(url, api_key_name).open(settings)


class TinkerClient:
    """A ``tinker`` service, called through that package's client on first use.

    Parameters
    ----------
    url
        The service's, with or without ``/v1``; None for ``tinker``'s default; ``"embedded"`` for
        the one that Ratchet starts.
    api_key_name
        The environment variable that contains the key; ``TINKER_API_KEY`` if there is no URL.
    of_run
        A run references the saved models; Ratchet's service does not delete them.
    """

    asks_old = True
    """Whether losses require old log-probabilities even if all ratios are 1."""

    def __init__(
        self, url: str | None, api_key_name: str | None = None, *, of_run: bool = False
    ) -> None:
        self._url, self._key, self._of_run = url, api_key_name, of_run

    @cached_property
    def _service(self) -> Any:  # noqa: ANN401 -- tinker's ServiceClient
        require_packages(["tinker"], "A training service of the kind 'tinker'")
        import tinker

        name = self._key or (KEY_VARIABLE if self._url is None else None)
        key = _LOCAL_KEY if name is None else os.environ.get(name)
        if not key:
            raise MissingKeyError(f"tinker: the environment variable {name} is not set; set it.")
        url = str(Endpoint(self._url).url()) if self._url == EMBEDDED else self._url
        if url is not None:
            url = url.rstrip("/").removesuffix("/v1")
        metadata = {RUN_METADATA: "true"} if self._of_run else None
        return tinker.ServiceClient(user_metadata=metadata, base_url=url, api_key=key)

    def open(self, settings: SessionSettings) -> TinkerTrainingService:
        """Open a new session: the service has no intents; sessions end with this process."""
        service = self._service
        with _explained():
            if settings.resume:
                opened = service.create_training_client_from_state_with_optimizer(settings.model)
            else:
                opened = service.create_lora_training_client(
                    base_model=settings.model, rank=settings.lora_rank, seed=settings.seed
                )
            return TinkerTrainingService(self, opened.result())

    def sampler(self, session: TrainingService) -> str:
        """Save a session's weights for sampling, separate from those for training."""
        return session.save_weights(sequence=session.next_sequence(), name="sampled")

    def sample(
        self, sampler: str, model: str, requests: Sequence[SampleRequest]
    ) -> list[Completion]:
        """Sample with saved weights, or with the base model if none are named."""
        weights = {"model_path": sampler} if sampler else {"base_model": model}
        return sample_with_tinker(self.open_sampler(**weights), requests)

    def open_sampler(self, **weights: str) -> Any:  # noqa: ANN401 -- tinker's SamplingClient
        """Return a sampling client of a ``base_model``, or of a ``model_path``."""
        service = self._service
        with _explained():
            return service.create_sampling_client(**weights).result()

    def upload(self, folder: Path, name: str) -> str:
        """Refuse: the service accepts no uploads."""
        raise ParameterError(
            f"agents.NAME.model: got {name!r} of {folder}, expected the name of one of the"
            " service's base models: the backend 'tinker' accepts no uploads."
        )

    def address(self, model: str) -> ModelAddress:
        """Refuse: such models have no known address for chat requests."""
        raise ParameterError("evaluation.suites: expected none with the backend 'tinker'.")

    def close(self) -> None:
        """Close the connections; models and sessions at the service remain."""
        service = vars(self).pop("_service", None)
        if service is not None:
            service.holder.close()


@dataclass(frozen=True, slots=True)
class _Done:
    """The last operation and its result."""

    sequence: int
    content: object
    answer: Any


class TinkerTrainingService:
    """A session of the client, as a :class:`TrainingService`; not thread-safe."""

    def __init__(self, client: TinkerClient, training: Any) -> None:  # noqa: ANN401 -- tinker's
        self._client = client
        self._training = training
        self._last: _Done | None = None
        self._sampler: Any = None
        self._saved: dict[str, Any] = {}

    @property
    def session_id(self) -> str:
        """The id of the trained model."""
        return str(self._training.model_id)

    def next_sequence(self) -> int:
        """Return the next sequence number; starts at 0 in each session."""
        return 0 if self._last is None else self._last.sequence + 1

    def forward_backward(
        self,
        examples: Sequence[TrainingExample],
        *,
        loss: str,
        loss_config: Mapping[str, float],
        sequence: int,
    ) -> ForwardBackward:
        """Accumulate the gradient of a loss; see :class:`TrainingService`."""
        config = dict(loss_config)
        data = [_datum(example, loss) for example in examples]
        content = ("forward_backward", tuple(examples), loss, tuple(sorted(config.items())))
        return self._once(
            sequence,
            content,
            lambda: _passed(
                examples, self._training.forward_backward(data, loss, config or None).result()
            ),
        )

    def forward(self, examples: Sequence[TrainingExample], *, sequence: int) -> ForwardBackward:
        """Return log-probabilities; see :class:`TrainingService`."""
        data = [_datum(example, "cross_entropy") for example in examples]
        return self._once(
            sequence,
            ("forward", tuple(examples)),
            lambda: _passed(examples, self._training.forward(data, "cross_entropy").result()),
        )

    def optim_step(self, optimizer: OptimizerSettings, *, sequence: int) -> dict[str, float]:
        """Apply the accumulated gradient; see :class:`TrainingService`."""
        import tinker

        params = tinker.AdamParams(
            learning_rate=optimizer.learning_rate,
            beta1=optimizer.beta1,
            beta2=optimizer.beta2,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            grad_clip_norm=optimizer.max_grad_norm,
        )

        def step() -> dict[str, float]:
            self._sampler = None
            return dict(self._training.optim_step(params).result().metrics or {})

        return self._once(sequence, ("optim_step", optimizer), step)

    def sample(
        self, requests: Sequence[SampleRequest], *, model: str | None = None
    ) -> list[Completion]:
        """Sample; see :class:`TrainingService`.

        For Tinker, ``stop_ids``, if any, replace the model's end tokens.
        """
        return sample_with_tinker(self._sampler_of(model), requests)

    def save_weights(self, *, sequence: int, name: str, optimizer: bool = False) -> str:
        """Save the weights; return their path.

        A path with its optimizer is for training, one without for sampling.
        """
        save = self._training.save_state if optimizer else self._training.save_weights_for_sampler
        return self._once(
            sequence, ("save_weights", name, optimizer), lambda: str(save(name).result().path)
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _sampler_of(self, model: str | None) -> Any:  # noqa: ANN401 -- tinker's SamplingClient
        if model is None:
            if self._sampler is None:
                self._sampler = self._training.save_weights_and_get_sampling_client().result()
            return self._sampler
        if model not in self._saved:
            self._saved[model] = self._client.open_sampler(model_path=model)
        return self._saved[model]

    def _once(self, sequence: int, content: object, do: Callable[[], _Answer]) -> _Answer:
        """Execute an operation, unless it repeats the last one."""
        if (
            self._last is not None
            and sequence == self._last.sequence
            and content == self._last.content
        ):
            answer: _Answer = self._last.answer
            return answer
        if sequence != self.next_sequence():
            raise StateError(
                f"sequence: got {sequence}, expected {self.next_sequence()}. A tinker session"
                " ends with its process; open one with resume=True from the last saved weights."
            )
        with _explained():
            answer = do()
        self._last = _Done(sequence, content, answer)
        return answer


def sample_with_tinker(
    sampler: Any,  # noqa: ANN401 -- tinker's SamplingClient
    requests: Sequence[SampleRequest],
) -> list[Completion]:
    """Sample completions concurrently with a sampling client; in request order."""
    import tinker

    waiting = [
        sampler.sample(
            prompt=tinker.ModelInput.from_ints(list(request.prompt)),
            num_samples=1,
            sampling_params=tinker.SamplingParams(
                max_tokens=request.max_tokens,
                seed=request.seed % 2**31,
                temperature=request.temperature,
                top_p=request.top_p,
                stop=list(request.stop_ids) or None,
            ),
        )
        for request in requests
    ]
    with _explained():
        return [_completion(future.result().sequences[0]) for future in waiting]


@contextmanager
def _explained() -> Iterator[None]:
    """Raise the client's errors as Ratchet's."""
    import tinker

    try:
        yield
    except tinker.TinkerError as error:
        raise LanguageModelError(f"tinker: {error}") from error


def _datum(example: TrainingExample, loss: str) -> Any:  # noqa: ANN401 -- tinker's Datum
    import tinker

    weights = example.weights or (1.0,) * len(example.tokens)
    factors = [mask * factor for mask, factor in zip(example.loss_mask, weights, strict=True)]
    rows: dict[str, list[float]] = {}
    if loss == "cross_entropy":
        rows["weights"] = factors[1:]
    elif example.advantages is None or example.log_probs is None or min(factors) < 0:
        raise ParameterError(
            f"loss {loss!r}: tinker needs advantages and log_probs of each example, and weights of"
            " 0 or more."
        )
    else:  # its losses have no weights, but are linear in the advantages
        scaled = [f * a for f, a in zip(factors, example.advantages, strict=True)]
        rows |= {"advantages": scaled[1:], "logprobs": list(example.log_probs[1:])}
    inputs = {name: tinker.TensorData(row, "float32") for name, row in rows.items()}
    inputs["target_tokens"] = tinker.TensorData(list(example.tokens[1:]), "int64")
    prompt = tinker.ModelInput.from_ints(list(example.tokens[:-1]))
    return tinker.Datum(model_input=prompt, loss_fn_inputs=inputs)


def _passed(examples: Sequence[TrainingExample], response: Any) -> ForwardBackward:  # noqa: ANN401
    log_probs = []
    for example, output in zip(examples, response.loss_fn_outputs, strict=True):
        row_log_probs = [0.0, *output["logprobs"].tolist()]
        mask = example.loss_mask
        log_probs.append(tuple(v if m else 0.0 for v, m in zip(row_log_probs, mask, strict=True)))
    metrics = {name.partition(":")[0]: float(value) for name, value in response.metrics.items()}
    # its means are over all tokens, including masked ones
    loss_metrics = {name: value for name, value in metrics.items() if name == "loss"}
    return ForwardBackward(loss_metrics | _figures(examples, log_probs), tuple(log_probs))


def _figures(
    examples: Sequence[TrainingExample], log_probs: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Return means over unmasked tokens, and their number."""
    apart = [
        now - before
        for example, row in zip(examples, log_probs, strict=True)
        for now, before, mask in zip(row, example.log_probs or row, example.loss_mask, strict=True)
        if mask
    ]
    count = max(1, len(apart))
    return {
        "tokens": float(len(apart)),
        "ratio": sum(map(math.exp, apart)) / count,
        "kl": sum(math.exp(each) - 1 - each for each in apart) / count,
    }


def _completion(sequence: Any) -> Completion:  # noqa: ANN401 -- tinker's SampledSequence
    tokens, log_probs = tuple(sequence.tokens), tuple(sequence.logprobs or ())
    return Completion(tokens, log_probs, "stop" if sequence.stop_reason == "stop" else "length")
