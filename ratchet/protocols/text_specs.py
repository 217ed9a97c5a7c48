"""How an agent takes part in a text scenario: what it is called and how its replies look.

Protocols give each agent a ``TextAgentSpec``; text scenarios check and read them. Light.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ratchet.errors import ProtocolSpecificationError

DECIDE_NOW = "This is your last turn. Decide now."

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class TextAgentSpec:
    """How one agent of a protocol takes part in a text scenario.

    ``human_name`` is what others know it by, ``anonymous`` hides it from them. ``headers`` maps
    the channels the agent writes in to the line its text for them begins with; a verifier that
    only decides has none. ``last_round_system_message`` is added to its prompt in the last round
    in which it can act. With ``shows_own_raw_messages`` its prompt has its own replies as it
    wrote them, else what was read from them.

    Raises
    ------
    ProtocolSpecificationError
        If services would refuse the name, or headers could be mistaken for one another.
    """

    human_name: str
    headers: Mapping[str, str] = field(default_factory=dict)
    anonymous: bool = False
    last_round_system_message: str | None = None
    shows_own_raw_messages: bool = True

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.human_name):
            raise ProtocolSpecificationError(
                f"TextAgentSpec.human_name: got {self.human_name!r}, expected 1 to 64 letters,"
                " digits, '_' or '-', as chat services want names."
            )
        plain = [" ".join(header.casefold().split()) for header in self.headers.values()]
        one_line = all("\n" not in header for header in self.headers.values())
        if not all(plain) or not one_line or len(set(plain)) != len(plain) or "decision:" in plain:
            raise ProtocolSpecificationError(
                f"TextAgentSpec.headers of {self.human_name!r}: got {dict(self.headers)}, expected"
                " one line for each channel, no two the same, and none of them 'Decision:'."
            )
