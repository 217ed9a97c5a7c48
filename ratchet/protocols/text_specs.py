"""Agents in text scenarios: their names and the format of their replies.

Protocols define a ``TextAgentSpec`` for each agent; text scenarios read them. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ratchet.errors import ProtocolSpecificationError

DECIDE_NOW = "This is your last turn. Decide now."

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class TextAgentSpec:
    """Spec of one agent of a protocol in text scenarios.

    ``human_name`` is its name for other agents, ``anonymous`` hides it from them. ``headers`` maps
    the channels in which the agent writes to the first line of its text for them; a verifier that
    only decides has none. ``last_round_system_message`` is added to its prompt in the last round in
    which it can act. With ``shows_own_raw_messages`` its prompt contains its own replies as
    generated, otherwise as parsed. ``argued_decision`` reads from an agent's message the decision
    that it argues for, 0 or 1, which becomes the episode's stance: the agent chooses its side.
    Raises ProtocolSpecificationError if services would refuse the name, or headers are ambiguous.
    """

    human_name: str
    headers: Mapping[str, str] = field(default_factory=dict)
    anonymous: bool = False
    last_round_system_message: str | None = None
    shows_own_raw_messages: bool = True
    argued_decision: Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.human_name):
            raise ProtocolSpecificationError(
                f"TextAgentSpec.human_name: got {self.human_name!r}, expected 1 to 64 letters,"
                " digits, '_' or '-', as chat services require."
            )
        plain = [" ".join(header.casefold().split()) for header in self.headers.values()]
        one_line = all("\n" not in header for header in self.headers.values())
        if not all(plain) or not one_line or len(set(plain)) != len(plain) or "decision:" in plain:
            raise ProtocolSpecificationError(
                f"TextAgentSpec.headers of {self.human_name!r}: got {dict(self.headers)}, expected"
                " one line for each channel, no two the same, and none of them 'Decision:'."
            )
