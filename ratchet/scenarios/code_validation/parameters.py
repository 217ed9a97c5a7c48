"""Parameters of code validation, and the kinds of bugs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from ratchet.errors import UnknownNameError, nearest
from ratchet.parameters.base import (
    SubParameters,
    TestGroups,
    register_agent_parameters,
    register_parameters,
)
from ratchet.parameters.chat_agents import TextAgentParameters
from ratchet.parameters.purposes import SCENARIO, Purpose
from ratchet.parameters.service_fields import BaseUrl, ExtraBody, KeyName, check_sampling

BUG_KINDS = (
    "arithmetic",
    "augmented",
    "comparison",
    "off_by_one_comparison",
    "constant",
    "logic",
    "negation",
    "swapped_operands",
    "wrong_variable",
    "range_bound",
    "index",
    "slice",
    "dropped_statement",
    "dropped_branch",
    "loop_control",
    "wrong_function",
    "wrong_method",
    "early_return",
)
"""The kinds that mutation knows. Their places are stored: new ones come last."""

NO_BUG, UNKNOWN_BUG, SEVERAL_BUGS = 0, -1, -2
BUG_LABELS = {
    NO_BUG: "no bug",
    UNKNOWN_BUG: "not known",
    SEVERAL_BUGS: "several kinds",
    **{number: name.replace("_", " ") for number, name in enumerate(BUG_KINDS, start=1)},
}
"""Number → name of the kind."""

MAX_LEVEL = 4


def bug_number(kinds: Collection[str]) -> int:
    """Return the number of a program's kinds of bugs; several kinds have a separate number."""
    for kind in kinds:
        if kind not in BUG_KINDS:
            raise UnknownNameError(f"kind of bug: unknown {kind!r}.{nearest(kind, BUG_KINDS)}")
    different = set(kinds)
    if not different:
        return NO_BUG
    return SEVERAL_BUGS if len(different) > 1 else 1 + BUG_KINDS.index(different.pop())


register_agent_parameters("code_validation")(TextAgentParameters)


@register_parameters("code_validation", scenarios=("code_validation",))
class CodeValidationParameters(SubParameters, read_for=SCENARIO):
    """The dataset of programs, and the prompts of agents.

    ``prompt_templates``: ``full`` for real models, ``compact`` for tiny ones, or a custom folder
    with ``AGENT.txt`` for each agent, relative to the experiment file. Programs of ``dataset:
    generated`` are generated. Other datasets are read: ``jsonl:PATH`` from a file, or a folder with
    ``train.jsonl`` and ``test.jsonl``; ``hub:OWNER/NAME`` or ``hub:PATH`` from the Hugging Face hub
    or a local copy. In the layout of APPS, ``apps_solution_number`` is the index of the only
    solution of each problem that is used (default: all). ``run_own_tests`` drops programs whose
    problem's own tests contradict their label.

    - ``levels``: levels of difficulty of generated programs, in equal parts.
    - ``num_train``: number of generated training programs.
    - ``num_test``: number of generated test programs.
    - ``max_mutations``: maximum number of changes in a generated buggy program.
    - ``dataset_seed``: seed of generated programs; the experiment's seed when not given.
    - ``difficulties``: difficulties that are selected, by the dataset's names; all when empty.
    - ``exclude_flagged``: drop problems that are marked as doubtful.
    - ``max_test_size``: maximum number of test datapoints.
    - ``time_limit``: CPU seconds of a program with tests.
    - ``memory_mb``: memory of a program with tests in megabytes.
    """

    prompt_templates: Annotated[str, Purpose.GAME] = Field(default="full", min_length=1)
    levels: tuple[NonNegativeInt, ...] = (0,)
    num_train: PositiveInt = 1000
    num_test: PositiveInt = 200
    max_mutations: PositiveInt = 1
    dataset_seed: NonNegativeInt | None = None
    difficulties: tuple[str, ...] = ()
    exclude_flagged: bool = True
    apps_solution_number: NonNegativeInt | None = None
    run_own_tests: bool = True
    max_test_size: PositiveInt | None = None
    time_limit: PositiveFloat = 4.0
    memory_mb: int = Field(default=256, ge=64)

    def test_groups(self) -> tuple[TestGroups, ...]:
        """Return the kinds of bugs, by which results are grouped."""
        return (
            TestGroups(
                name="bug",
                column="bug",
                title="the kind of bug",
                axis="kind of bug",
                note="Programs by the kind of change that made them wrong. A verifier that accepts"
                " more is better on those without a bug and worse on all others.",
                labels=BUG_LABELS,
            ),
        )

    @model_validator(mode="after")
    def _check_levels(self) -> CodeValidationParameters:
        if not self.levels or len(set(self.levels)) != len(self.levels):
            raise ValueError(
                f"levels={self.levels}: expected at least one level, none of them twice"
            )
        if max(self.levels) > MAX_LEVEL:
            raise ValueError(f"levels={self.levels}: expected levels from 0 to {MAX_LEVEL}")
        return self


@register_parameters("bug_generator", scenarios=("code_validation",))
class BugGeneratorParameters(SubParameters, read_for=Purpose.DATA):
    """A chat model that writes the buggy programs of ``code_validation``; off without a name.

    For each buggy program, the model is called up to ``num_attempts`` times with a correct program,
    to add a bug. A reply is accepted if its program runs, fails a test of the problem, is not a
    duplicate and does not explain the bug. Without an accepted reply, ``generated`` data use a
    mutant, and other data no program. For data that are read, a bug is requested for each problem
    that has tests and a program that passes them, but no buggy one.

    - ``model_name``: model of the service; no model is called when empty.
    - ``base_url``: URL of the service, as for agents.
    - ``api_key_name``: environment variable with the service's key.
    - ``api_version``: version of Azure's form of the API; null: not Azure.
    - ``temperature``: sampling temperature; the service's default when not given.
    - ``top_p``: probability mass of the tokens that are sampled from.
    - ``max_tokens``: maximum number of tokens of a reply.
    - ``reasoning_effort``: amount of reasoning, in the service's terms.
    - ``chat_template_kwargs``: arguments of the service's chat template.
    - ``extra_body``: further fields of each request.
    - ``use_dummy_api``: sample replies by seed instead of calling a service, for tests.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    model_name: str = ""
    base_url: BaseUrl = "embedded"
    api_key_name: Annotated[KeyName, Purpose.NOTHING] = None
    api_version: str | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: PositiveInt = 1024
    reasoning_effort: str | None = Field(default=None, min_length=1)
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    extra_body: ExtraBody = Field(default_factory=dict)
    num_attempts: PositiveInt = 5
    use_dummy_api: bool = False

    @property
    def is_on(self) -> bool:
        """Whether a model is called."""
        return bool(self.model_name)

    def unread(self) -> Collection[str]:
        """Return all fields while no model is named."""
        return () if self.is_on else tuple(type(self).model_fields)

    @model_validator(mode="after")
    def _check(self) -> BugGeneratorParameters:
        check_sampling(self.temperature, self.top_p)
        parameter_names = sorted(self.model_fields_set) if not self.is_on else []
        unread = [name for name in parameter_names if getattr(self, name) != self._default(name)]
        if unread:
            raise ValueError(
                f"got {', '.join(unread)}, but no model_name, so no model is called; set the"
                " model that writes buggy programs, or omit the other parameters"
            )
        return self

    def _default(self, name: str) -> object:
        return type(self).model_fields[name].get_default(call_default_factory=True)
