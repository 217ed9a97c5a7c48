"""Parameters of tasks that language models answer token by token. Light: pydantic only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from ratchet.parameters.agents import AgentParameters
from ratchet.parameters.base import (
    Reference,
    SubParameters,
    named,
    register_agent_parameters,
    register_parameters,
)
from ratchet.parameters.purposes import AGENT, SCENARIO, Purpose
from ratchet.plugins import is_class_spec

PROTOCOL = "environment"
SMALL = "small"
"""The model that is initialised from the seed."""
RANDOM = "random"
"""The model of an agent that chooses legal actions at random."""
MOST_SYMBOLS = 62
"""Letters, small and capital, and digits."""

_LOADING = ("load_checkpoint_and_parameters", "checkpoint_run_id", "checkpoint_version")
_Named = Annotated[Reference | None, BeforeValidator(named)]
_PLAYED = (Purpose.ROLLOUTS, Purpose.TESTS)


class SmallModelParameters(SubParameters, read_for=AGENT):
    """Shape of the small model, a Llama over characters that is initialised from the seed.

    - ``d_model``: width of the model.
    - ``layers``: number of layers.
    - ``heads``: number of attention heads.
    - ``d_mlp``: width of the MLP's hidden layer; twice ``d_model`` when not given.
    - ``context_length``: maximum number of characters of prompt and reply.
    - ``init_scale``: standard deviation of the initial weights.
    """

    d_model: PositiveInt = 64
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    d_mlp: PositiveInt | None = None
    context_length: PositiveInt = 256
    init_scale: PositiveFloat = 0.06

    @model_validator(mode="after")
    def _check_heads(self) -> SmallModelParameters:
        if self.d_model % (2 * self.heads):
            raise ValueError(
                f"d_model={self.d_model} with heads={self.heads}: expected a multiple of"
                f" {2 * self.heads}, since each head rotates pairs"
            )
        return self


class WarmUpParameters(SubParameters, read_for=AGENT):
    """``num_steps`` supervised steps before reinforcement learning, on demonstrations.

    None by default, for pretrained models. Small models learn at different speeds with different
    seeds, but have the same ability at the same loss.

    - ``num_steps``: maximum number of supervised steps.
    - ``until_loss``: loss, in nats per token, at which the supervised steps end early.
    - ``lr``: learning rate of the supervised steps.
    - ``batch_size``: number of demonstrations of a step.
    """

    num_steps: NonNegativeInt = 0
    until_loss: NonNegativeFloat = 0.0
    lr: PositiveFloat = 1e-3
    batch_size: PositiveInt = 32

    def unread(self) -> Collection[str]:
        """Return the parameters that are read if there are any steps."""
        return () if self.num_steps else ("lr", "batch_size")


class LoraParameters(SubParameters, read_for=AGENT):
    """A low-rank adapter (Hu et al. 2021) that learns in the model's place; off without a rank.

    - ``rank``: rank of the adapter; null: no adapter.
    - ``alpha``: numerator of the adapter's scale ``alpha / rank``; twice the rank when not given.
    - ``target_modules``: layers that get an adapter, by the last part of their names; all linear
      ones but the output when none is given.
    """

    rank: PositiveInt | None = None
    alpha: PositiveInt | None = None
    target_modules: tuple[str, ...] = ()

    def unread(self) -> Collection[str]:
        """Return the parameters that are read if it is enabled."""
        return () if self.rank else ("alpha", "target_modules")


@register_agent_parameters("language_task")
class LanguageAgentParameters(AgentParameters, read_for=AGENT):
    """A language model that learns from its own tokens.

    ``model`` is ``small``, a new one with the shape ``small_model`` and a tokenizer of the task's
    characters, a folder relative to the experiment file, or a name on the hub. ``temperature``,
    ``top_p`` and ``max_tokens`` (of one reply) are its sampling parameters. In a game, agents of
    one ``shared_model_group`` train one model, each its own when not given. There the model
    ``random`` chooses legal actions, and the function ``path/to/file.py:name`` one of each view.

    - ``shared_model_group``: name of a group of agents that train one model.
    - ``small_model``: shape of ``small``.
    - ``warm_up``: supervised training before reinforcement learning.
    - ``lora``: adapter that is trained instead of all weights.
    - ``precision``: data type in which the model computes; its optimizer updates float32 weights.
    - ``temperature``: sampling temperature during training.
    - ``top_p``: probability mass of the tokens that are sampled from.
    - ``max_tokens``: maximum number of tokens of a reply.
    """

    learns_tokens: ClassVar[bool] = True
    default_protocol: ClassVar[str] = PROTOCOL

    model: str = Field(default=SMALL, min_length=1)
    shared_model_group: str | None = Field(default=None, pattern=r"^[A-Za-z][\w-]*$")
    small_model: SmallModelParameters = SmallModelParameters()
    warm_up: WarmUpParameters = WarmUpParameters()
    lora: LoraParameters = LoraParameters()
    precision: Literal["float32", "bfloat16"] = "float32"
    temperature: Annotated[float, Purpose.SPEECH] = Field(default=1.0, ge=0, le=2)
    top_p: Annotated[float, Purpose.SPEECH] = Field(default=1.0, gt=0, le=1)
    max_tokens: Annotated[PositiveInt, Purpose.SPEECH] = 64

    def unread(self) -> Collection[str]:
        """Return the shape of a model that is not ``small``, and a group that is not given."""
        shape = () if self.model == SMALL else ("small_model",)
        return shape if self.shared_model_group else (*shape, "shared_model_group")

    @property
    def is_model(self) -> bool:
        """Whether a language model acts, rather than chance or a function."""
        return self.model != RANDOM and not is_class_spec(self.model)

    @property
    def reads_files(self) -> bool:
        """Whether the model is read from files, rather than built, or loaded from a state."""
        is_loaded = self.load_checkpoint_and_parameters and self.lora.rank is None
        return self.is_model and self.model != SMALL and not is_loaded

    def never_learns_by(self) -> str | None:
        """Return ``model`` if no language model acts."""
        return None if self.is_model else "model"

    @model_validator(mode="after")
    def _refuse_network_parameters(self) -> LanguageAgentParameters:
        """Refuse what only networks of other scenarios read: ignored, it would be a silent lie."""
        for name in AgentParameters.model_fields:
            value = getattr(self, name)
            if name not in _LOADING and value != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}={value!r}, but a language model that learns from its tokens doesn't"
                    " read it; leave it out"
                )
        return self


class ReverseParameters(SubParameters, read_for=SCENARIO):
    """Strings of letters, to be written backwards.

    - ``length``: number of letters of a string.
    - ``num_symbols``: number of different letters.
    """

    length: PositiveInt = 6
    num_symbols: int = Field(default=8, ge=2, le=MOST_SYMBOLS)


class PigLatinParameters(SubParameters, read_for=SCENARIO):
    """Synthetic words, to be written in pig Latin.

    - ``num_words``: number of words in a prompt.
    - ``max_syllables``: maximum number of syllables of a word.
    """

    num_words: PositiveInt = 1
    max_syllables: PositiveInt = 2


class ArithmeticParameters(SubParameters, read_for=SCENARIO):
    """One operation on two integers of up to ``num_digits`` digits.

    ``/`` is division without remainder.

    - ``operations``: operations that are sampled.
    """

    operations: tuple[Literal["+", "-", "*", "/"], ...] = Field(default=("+", "-"), min_length=1)
    num_digits: int = Field(default=2, ge=1, le=9)


@register_parameters("language_task", protocols=(PROTOCOL,), scenarios=("language_task",))
class LanguageTaskParameters(SubParameters, read_for=SCENARIO):
    """The tasks that ``dataset`` names, their prompts, environment and evaluation.

    ``dataset`` is ``reverse``, ``pig_latin`` or ``arithmetic``, whose sections set the tasks; a
    custom ``path/to/file.py:Class`` of tasks or of a game, or ``open_spiel/NAME``, which receive
    ``task_options``; ``path/to/file.jsonl``, or a folder with ``train.jsonl`` and ``test.jsonl``.
    ``num_train`` and ``num_test`` tasks are sampled (default: 2000 and
    200), or at most that many are read (default: all). Tasks of training and tests never have the
    same prompt: if data have no splits, a hash of it determines its side, with the share
    ``test_size`` of all prompts in tests. A further ``num_validation`` training tasks are reserved
    for ``language.validate_every``, or read from a folder's ``validation.jsonl`` (all for 0). If
    ``num_train`` is not given, they reduce the training set. ``dataset_seed`` defaults to the
    experiment's seed.

    ``evaluator`` gives rewards: ``exact``, ``partial`` (the share of correct symbols), or
    ``path/to/file.py:name`` of a function or class (default: the task's). ``environment`` responds
    to replies: ``single_turn``, ``python_tool``, or ``path/to/file.py:Class`` (default: the
    task's). Parameters of either are next to its ``name``. An episode has at most ``max_turns``
    replies.

    - ``reverse``: strings of ``dataset: reverse``.
    - ``pig_latin``: words of ``dataset: pig_latin``.
    - ``arithmetic``: problems of ``dataset: arithmetic``.
    - ``task_options``: arguments of a custom dataset class or of a game.
    - ``chat``: pass prompts as messages in the model's chat template instead of plain text.
    - ``system_prompt``: first message with ``chat``; the task's when not given.
    """

    num_train: Annotated[PositiveInt | None, Purpose.DATA] = None
    num_test: Annotated[PositiveInt | None, Purpose.DATA] = None
    num_validation: Annotated[NonNegativeInt, Purpose.DATA] = 0
    dataset_seed: Annotated[NonNegativeInt | None, Purpose.DATA] = None
    reverse: ReverseParameters = ReverseParameters()
    pig_latin: PigLatinParameters = PigLatinParameters()
    arithmetic: ArithmeticParameters = ArithmeticParameters()
    task_options: dict[str, JsonValue] = Field(default_factory=dict)
    chat: bool = False
    system_prompt: str | None = None
    evaluator: Annotated[_Named, *_PLAYED] = None
    environment: Annotated[_Named, Purpose.NETWORKS, *_PLAYED] = None  # its characters: tokenizers
    max_turns: Annotated[PositiveInt, *_PLAYED] = 10
