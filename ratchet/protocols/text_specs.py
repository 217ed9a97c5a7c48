"""How an agent takes part in a text scenario: what it is called and how its replies look.

Protocols give each agent a ``TextAgentSpec``; text scenarios check and read them. Light.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ratchet.errors import ProtocolSpecificationError

if TYPE_CHECKING:
    from ratchet.protocols.handler import ProtocolHandler

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


def check_text_specs(handler: ProtocolHandler) -> dict[str, TextAgentSpec]:
    """Return what a protocol says of its agents in text scenarios, checked.

    Raises
    ------
    ProtocolSpecificationError
        If the protocol doesn't take part in text scenarios, a header is missing, or two agents
        are called the same.
    """
    specs = {name: handler.text_agent_spec(name) for name in handler.agent_names}
    names = [spec.human_name for spec in specs.values()]
    if len(set(names)) != len(names):
        raise ProtocolSpecificationError(
            f"{type(handler).__name__}.text_agent_spec: got the human names {names}, expected no"
            " two the same."
        )
    for name, spec in specs.items():
        _check_headers(handler, name, spec)
    return specs


def _check_headers(handler: ProtocolHandler, agent: str, spec: TextAgentSpec) -> None:
    """Check that the agent can always say something, and knows how."""
    where = f"{type(handler).__name__}.text_agent_spec({agent!r}).headers"
    unknown = set(spec.headers) - set(handler.message_channel_names)
    if unknown:
        raise ProtocolSpecificationError(
            f"{where}: unknown channels {sorted(unknown)}, expected channels of"
            f" {list(handler.message_channel_names)}."
        )
    acts = handler.can_be_active_mask[:, handler.agent_index(agent)]
    channels = zip(handler.message_channel_names, acts.any(0).tolist(), strict=True)
    missing = [name for name, can_act in channels if can_act and name not in spec.headers]
    if not missing:
        return
    only_decides = agent in handler.verifier_names and not spec.headers
    if not only_decides:
        raise ProtocolSpecificationError(
            f"{where}: got none for {missing}, where the agent can write; expected one each."
        )
    mute = acts[: handler.min_message_rounds - 1].any(-1).nonzero().flatten().tolist()
    if mute:
        raise ProtocolSpecificationError(
            f"{where}: got none, but in round {mute[0]} the agent acts and may not decide yet"
            f" (min_message_rounds={handler.min_message_rounds}), so that it could say nothing."
            " Give it headers, or lower min_message_rounds."
        )
