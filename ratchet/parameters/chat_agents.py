"""Parameters of an agent that is a chat model. Light: pydantic only."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from ratchet.parameters.agents import AgentParameters
from ratchet.parameters.base import SubParameters
from ratchet.parameters.purposes import Purpose
from ratchet.parameters.service_fields import BaseUrl, ExtraBody, KeyName, check_sampling

_WORDS_TO_TOKENS = 1.5
_TENSOR_PARAMETERS = (
    "is_random",
    "agent_lr_factor",
    "body_lr_factor",
    "use_manual_architecture",
    "checkpoint_run_id",
    "checkpoint_version",
    "use_orthogonal_initialisation",
    "orthogonal_initialisation_gain",
)


_OFF = ("logprobs", "return_token_ids", "fine_tuning_service")


class FineTuningParameters(SubParameters):
    """Hyper-parameters of a fine-tune job; ``None`` uses the service's default.

    ``beta`` is the KL coefficient towards the old model in preference jobs; supervised jobs have
    none. Services accept ``learning_rate_multiplier`` (OpenAI, Azure and Ratchet) or
    ``learning_rate`` (Together, Fireworks). All but OpenAI and Azure accept ``lora_rank``.

    - ``n_epochs``: number of passes over the training file.
    - ``batch_size``: number of examples of an optimizer step.
    - ``seed``: seed of the job's data order.
    - ``learning_rate_multiplier``: factor on the service's learning rate (OpenAI, Azure and
      Ratchet).
    - ``learning_rate``: learning rate (Together, Fireworks).
    - ``lora_rank``: rank of the low-rank adapter that the job trains (all but OpenAI and Azure).
    """

    n_epochs: PositiveInt | None = None
    batch_size: PositiveInt | None = None
    learning_rate_multiplier: PositiveFloat | None = None
    learning_rate: PositiveFloat | None = None
    lora_rank: PositiveInt | None = None
    beta: PositiveFloat | None = None
    seed: NonNegativeInt | None = None

    def unread(self) -> Collection[str]:
        """Return later additions that are not given, so that earlier keys stay valid."""
        return [name for name in ("learning_rate", "lora_rank") if getattr(self, name) is None]


class FineTuningServiceParameters(SubParameters, read_for=Purpose.NOTHING):
    """Fine-tuning backend of an agent, and deployment of the models that it trains.

    ``backend`` is one of ``ratchet list tuning_backends``, or ``path/to/file.py:Class``; when not
    given ``ratchet`` for the embedded service, ``azure`` with an ``api_version``, else ``openai``.
    The other fields are for the backends that read them, and refused elsewhere. ``account`` is the
    id of Azure's resource (``/subscriptions/…/accounts/NAME``), or the account's name at Fireworks.
    ``deployment`` is a deployment at Fireworks, with add-ons, that models are loaded onto; by
    default each model gets a separate one. ``hardware`` is the hardware of a deployment: Azure's
    sku (``Standard``), Together's hardware id (by default models are called serverless), Fireworks'
    accelerator type. ``capacity`` is that of Azure's sku. ``adapter_path`` is vLLM's path of a
    model's adapter, with ``{root}`` for the folder that the training service returns (the default),
    ``{folder}`` for its last part and ``{model}``.

    - ``url``: a second address: of Azure's management (``https://management.azure.com`` when not
      given), of Fireworks' control plane (``https://api.fireworks.ai/v1``), for ``vllm`` of the
      training service (``ratchet llm serve``, required).
    - ``api_key_name``: environment variable with the key of ``url``, for Azure with a bearer token.
    """

    backend: Annotated[str | None, Purpose.FINE_TUNING] = Field(default=None, min_length=1)
    url: Annotated[BaseUrl, Purpose.FINE_TUNING] = None
    api_key_name: KeyName = None
    account: str | None = Field(default=None, min_length=1)
    deployment: str | None = Field(default=None, min_length=1)
    hardware: str | None = Field(default=None, min_length=1)
    capacity: PositiveInt | None = None
    adapter_path: str | None = Field(default=None, min_length=1)


class TextAgentParameters(AgentParameters, read_for=Purpose.GAME):
    """A chat model that acts as an agent.

    ``base_url``: ``"embedded"`` is the service that Ratchet starts itself, ``None`` is OpenAI, any
    other value the URL of an OpenAI-compatible service (with ``api_version``: Azure's form of the
    API). ``api_key_name`` names the environment variable with the key; keys are stored nowhere
    else. OpenAI's is ``OPENAI_API_KEY`` when not given; no other service gets a key that isn't
    named. Agents of one ``shared_model_group`` train one model; each its own when not given.
    ``repetition_penalty`` above 1 lowers the probability of tokens that are in the prompt or the
    reply already; OpenAI's API does not have it, the embedded service, vLLM and others do.
    ``system_prompt_template_path`` is a file with the agent's system prompt, which replaces the
    scenario's; it is relative to the experiment file's folder. ``use_supervisor_message``: whether
    prompts end with a user message that repeats the answer format: ``always``, in the ``first``
    round of a game, in ``all_but_first``, or ``if_nothing_heard``: if there is no other message.
    ``logprobs`` requests the log-probability of each token of a reply, ``return_token_ids`` the
    tokens' ids (the embedded service and vLLM; not OpenAI): both are stored in the rollouts, for
    trainers that learn from tokens. A reply that cannot be parsed is requested again up to
    ``num_invalid_generation_retries`` times, and every attempt is billed.

    - ``model_name``: model of the service that the agent starts with.
    - ``reasoning_effort``: amount of reasoning, in the service's terms.
    - ``chat_template_kwargs``: arguments of the service's chat template (``enable_thinking:
      false``).
    - ``extra_body``: further fields of each request.
    - ``temperature``: sampling temperature; the service's default when not given.
    - ``top_p``: probability mass of the tokens that are sampled from; the service's default when
      not given.
    - ``max_response_words``: length of a reply that the prompt asks for.
    - ``max_tokens_per_message``: maximum number of tokens of a reply; 1.5 for each word when not
      given.
    - ``fine_tune_from_scratch``: fine-tune the initial model in every iteration, not the latest
      one.
    - ``freeze_agent``: do not fine-tune the agent's model.
    - ``use_dummy_api``: sample replies by seed instead of calling a service, for tests.
    - ``fine_tuning``: hyper-parameters of the agent's fine-tune jobs.
    - ``fine_tuning_service``: service that trains the agent's model.
    - ``base_url``: URL of an OpenAI-compatible service; ``embedded``: Ratchet's own; null: OpenAI.
    - ``api_version``: version of Azure's form of the API; null: not Azure.
    - ``logprobs``: request the log-probability of each token of a reply and store it in the
      rollouts.
    - ``return_token_ids``: request the ids of the tokens of a reply and store them in the rollouts.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    is_text: ClassVar[bool] = True

    model_name: str = Field(default="ratchet-tiny", min_length=1)
    base_url: BaseUrl = "embedded"
    api_key_name: Annotated[KeyName, Purpose.NOTHING] = None
    api_version: str | None = None
    temperature: Annotated[float | None, Purpose.SPEECH] = Field(default=None, ge=0, le=2)
    top_p: Annotated[float | None, Purpose.SPEECH] = Field(default=None, gt=0, le=1)
    repetition_penalty: Annotated[float | None, Purpose.SPEECH] = Field(default=None, gt=0, le=2)
    max_response_words: Annotated[PositiveInt, Purpose.SPEECH] = 150
    max_tokens_per_message: Annotated[PositiveInt | None, Purpose.SPEECH] = None
    reasoning_effort: Annotated[str | None, Purpose.SPEECH] = Field(default=None, min_length=1)
    chat_template_kwargs: Annotated[dict[str, JsonValue], Purpose.SPEECH] = Field(
        default_factory=dict
    )
    extra_body: Annotated[ExtraBody, Purpose.SPEECH] = Field(default_factory=dict)
    logprobs: Annotated[bool, Purpose.SPEECH] = False
    return_token_ids: Annotated[bool, Purpose.SPEECH] = False
    num_invalid_generation_retries: Annotated[NonNegativeInt, Purpose.SPEECH] = 3
    shared_model_group: str | None = None
    fine_tune_from_scratch: Annotated[bool, Purpose.FINE_TUNING] = True
    freeze_agent: Annotated[bool, Purpose.FINE_TUNING] = False
    use_supervisor_message: Literal[
        "none", "if_nothing_heard", "first", "all_but_first", "always"
    ] = "none"
    system_prompt_template_path: str | None = None
    use_dummy_api: bool = False
    fine_tuning: Annotated[FineTuningParameters, Purpose.FINE_TUNING] = FineTuningParameters()
    fine_tuning_service: Annotated[FineTuningServiceParameters, Purpose.FINE_TUNING] = (
        FineTuningServiceParameters()
    )

    def never_learns_by(self) -> str | None:
        """Return the parameter by which the agent never learns, if any."""
        return "freeze_agent" if self.freeze_agent else None

    @property
    def max_tokens(self) -> int:
        """The bound on a completion's tokens: as given, or 1.5 for each word."""
        if self.max_tokens_per_message is not None:
            return self.max_tokens_per_message
        return math.ceil(_WORDS_TO_TOKENS * self.max_response_words)

    def hears_supervisor(self, round: int, *, hears_others: bool) -> bool:
        """Return whether its prompt in a round of the game ends with the supervisor's message."""
        answers = {
            "none": False,
            "if_nothing_heard": not hears_others,
            "first": round == 0,
            "all_but_first": round > 0,
            "always": True,
        }
        return answers[self.use_supervisor_message]

    def unread(self) -> Collection[str]:
        """Return the fields that are off: no key includes them."""
        return [
            name for name in _OFF if getattr(self, name) == type(self).model_fields[name].default
        ]

    @model_validator(mode="after")
    def _check_sampling(self) -> Self:
        check_sampling(self.temperature, self.top_p)
        return self

    @model_validator(mode="after")
    def _refuse_tensor_parameters(self) -> Self:
        """Refuse parameters of tensor agents, which would be silently ignored."""
        for name in _TENSOR_PARAMETERS:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}={value!r}, but a chat model doesn't read it; leave it out"
                )
        return self
