"""Deprecated path of :mod:`ratchet.algorithms.language.returns`."""

from ratchet.algorithms.language.returns import TokenAdvantages as TokenAdvantages
from ratchet.algorithms.language.returns import spread_over_tokens as spread_over_tokens
from ratchet.algorithms.language.returns import token_gae as token_gae
from ratchet.algorithms.language.returns import token_n_step_returns as token_n_step_returns
from ratchet.algorithms.language.returns import token_reward_to_go as token_reward_to_go
from ratchet.algorithms.language.returns import whiten_tokens as whiten_tokens
