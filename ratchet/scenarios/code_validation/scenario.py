"""The code-validation scenario: data, and what agents are told about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.language_models.auxiliary_calls import AuxiliaryModel
from ratchet.scenarios.code_validation.bug_replies import FILES
from ratchet.scenarios.code_validation.dataset import (
    HUB,
    build_code_validation_datasets,
    hash_data_files,
    most_bugs,
)
from ratchet.scenarios.code_validation.prompts import (
    SystemPrompts,
    template_files,
    without_template_paths,
)
from ratchet.scenarios.pure_text.base import TextScenario
from ratchet.scenarios.registry import register_scenario

if TYPE_CHECKING:
    from ratchet.language_models.auxiliary_calls import ModelCalls
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.rollouts.dataset import NestedArrayDictDataset


@register_scenario("code_validation")
class CodeValidationScenario(TextScenario):
    """Agents find out whether a program solves the problem that it was written for."""

    label_texts = ("the solution is buggy", "the solution is right")

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, NestedArrayDictDataset]:
        """Make ``train`` and ``test``."""
        return build_code_validation_datasets(hyper_params)

    def needed_packages(self, hyper_params: HyperParameters) -> list[str]:
        """Return ``datasets`` for the hub, beside what chat models need."""
        needed = list(super().needed_packages(hyper_params))
        return needed + ["datasets"] * hyper_params.dataset.startswith(HUB)

    def make_datasets(
        self, hyper_params: HyperParameters, calls: ModelCalls | None = None
    ) -> dict[str, NestedArrayDictDataset]:
        """Make ``train`` and ``test``, with buggy programs of a chat model where one is named."""
        return build_code_validation_datasets(hyper_params, calls)

    def asked_for_data(self, hyper_params: HyperParameters) -> tuple[AuxiliaryModel, ...]:
        """Return the model that writes buggy programs, if one is named."""
        parameters = hyper_params.bug_generator
        if not parameters.is_on:
            return ()
        wanted = most_bugs(hyper_params)
        most = None if wanted is None else wanted * parameters.num_attempts
        return (AuxiliaryModel(parameters, wanted, most, parameters.max_tokens),)

    def data_prompts(self, hyper_params: HyperParameters) -> Mapping[str, Path]:
        """Return the templates of what that model is told."""
        return FILES if hyper_params.bug_generator.is_on else {}

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the code that makes data only; that of the sandboxed process is part of it."""
        from ratchet.scenarios.sandbox.sandboxed.worker import main

        return (build_code_validation_datasets, main)

    def data_files(self, hyper_params: HyperParameters) -> dict[str, str]:
        """Return the hashes of the files that are read."""
        return hash_data_files(hyper_params.dataset)

    def played_files(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> Mapping[str, Path]:
        """Return the templates of system prompts."""
        return template_files(hyper_params, protocol_handler, self.base_dir)

    def without_places(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Leave out where templates lie: what is in them counts."""
        return without_template_paths(super().without_places(parameters))

    def build_system_prompts(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> SystemPrompts:
        """Read and check the templates of the protocol."""
        return SystemPrompts.of(hyper_params, protocol_handler, self.base_dir)
