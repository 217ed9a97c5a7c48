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
from typing import Any, TypeVar

from ratchet.errors import LanguageModelError, MissingKeyError, ParameterError, StateError
from ratchet.language_models.engines.rollouts import Completion, SampleRequest
from ratchet.language_models.training_service.interface import (
    RUN_METADATA,
    ForwardBackward,
    OptimizerSettings,
    TrainingExample,
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
    """Open a session.

    Parameters
    ----------
    url
        The service's, without ``/v1``; None for ``tinker``'s default.
    model
        A base model; with ``resume`` a path that was saved with its optimizer.
    api_key_name
        The environment variable that contains the key; ``TINKER_API_KEY`` if there is no URL.
    """
    client = open_tinker_client(url, api_key_name)
    return open_tinker_session(client, model=model, lora_rank=lora_rank, seed=seed, resume=resume)


def open_tinker_client(url: str | None, api_key_name: str | None, *, of_run: bool = False) -> Any:  # noqa: ANN401 -- tinker's
    """Return a ``ServiceClient``, which sessions may share; as :func:`connect_tinker`.

    ``of_run``: a run references its saved models; Ratchet's service does not delete them.
    """
    require_packages(["tinker"], "A training service of the kind 'tinker'")
    import tinker

    name = api_key_name or (KEY_VARIABLE if url is None else None)
    key = _LOCAL_KEY if name is None else os.environ.get(name)
    if not key:
        raise MissingKeyError(f"tinker: the environment variable {name} is not set; set it.")
    metadata = {RUN_METADATA: "true"} if of_run else None
    return tinker.ServiceClient(user_metadata=metadata, base_url=url, api_key=key)


def open_tinker_session(
    client: Any,  # noqa: ANN401 -- tinker's
    *,
    model: str,
    lora_rank: int,
    seed: int,
    resume: bool,
) -> TinkerTrainingService:
    """Open a session through a client; as :func:`connect_tinker`."""
    with _explained():
        if resume:
            opened = client.create_training_client_from_state_with_optimizer(model)
        else:
            opened = client.create_lora_training_client(base_model=model, rank=lora_rank, seed=seed)
        return TinkerTrainingService(client, opened.result())


@dataclass(frozen=True, slots=True)
class _Done:
    """The last operation and its result."""

    sequence: int
    content: object
    answer: Any


class TinkerTrainingService:
    """A session of the client, as a :class:`TrainingService`; not thread-safe."""

    def __init__(self, client: Any, training: Any) -> None:  # noqa: ANN401 -- tinker's
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
        self._client.holder.close()

    def _sampler_of(self, model: str | None) -> Any:  # noqa: ANN401 -- tinker's SamplingClient
        if model is None:
            if self._sampler is None:
                self._sampler = self._training.save_weights_and_get_sampling_client().result()
            return self._sampler
        if model not in self._saved:
            self._saved[model] = self._client.create_sampling_client(model_path=model).result()
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


def open_tinker_sampler(client: Any, **where: str) -> Any:  # noqa: ANN401 -- tinker's
    """Return a ``SamplingClient`` of a ``base_model``, or of a ``model_path``."""
    with _explained():
        return client.create_sampling_client(**where).result()


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
