"""The game of code validation: a program is right (``y = 1``) or has a bug (``y = 0``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.scenarios.code_validation.prompts import SystemPrompts
from ratchet.scenarios.pure_text.environment import PureTextEnvironment

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.rollouts.dataset import NestedArrayDictDataset


class CodeValidationEnvironment(PureTextEnvironment):
    """Plays episodes about programs; see :class:`PureTextEnvironment`.

    Raises
    ------
    PromptTemplateError
        If an agent's template is missing or has wrong variables: before anything is played.
    """

    def __init__(
        self,
        hyper_params: HyperParameters,
        dataset: NestedArrayDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
    ) -> None:
        super().__init__(hyper_params, dataset, protocol_handler, train=train)
        self.system_prompts = SystemPrompts.of(hyper_params, protocol_handler)
