"""Parameters of the code-validation scenario. Light: pydantic only."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from ratchet.parameters.base import (
    SubParameters,
    register_agent_parameters,
    register_parameters,
)
from ratchet.parameters.chat_agents import TextAgentParameters
from ratchet.parameters.purposes import SCENARIO, Purpose

MAX_LEVEL = 4

register_agent_parameters("code_validation")(TextAgentParameters)


@register_parameters("code_validation", scenarios=("code_validation",))
class CodeValidationParameters(SubParameters, read_for=SCENARIO):
    """Which programs are judged, and how agents are told about it.

    ``prompt_templates``: ``full`` for real models, ``compact`` for tiny ones, or a folder of the
    user's own with ``AGENT.txt`` for each agent, which starts from the experiment file's.
    ``dataset: generated`` uses ``levels`` (of difficulty, in equal parts), ``num_train``,
    ``num_test``, ``max_mutations`` (changes in one buggy program) and ``dataset_seed`` (the
    experiment's seed when not given). Datasets of other names are read: ``jsonl:PATH`` from a
    file, or a folder with ``train.jsonl`` and ``test.jsonl``; ``hub:OWNER/NAME`` or ``hub:PATH``
    from the Hugging Face hub or a local copy. Of these ``difficulties`` (the dataset's own names)
    chooses a part, ``exclude_flagged`` leaves out problems that are marked as doubtful,
    ``max_test_size`` is to the test set what ``dataset_options.max_train_size`` is to the other,
    and ``time_limit`` (CPU seconds) and ``memory_mb`` bound programs that come with tests. Of the
    layout of APPS ``apps_solution_number`` is the place of the one solution of each problem that
    is used (all when not given); with ``run_own_tests`` programs are left out whose problem's own
    tests contradict their label.
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

    @model_validator(mode="after")
    def _check_levels(self) -> CodeValidationParameters:
        if not self.levels or len(set(self.levels)) != len(self.levels):
            raise ValueError(
                f"levels={self.levels}: expected at least one level, none of them twice"
            )
        if max(self.levels) > MAX_LEVEL:
            raise ValueError(f"levels={self.levels}: expected levels from 0 to {MAX_LEVEL}")
        return self
