"""Arguments of an environment's constructor may be lists and mappings."""

from __future__ import annotations

from ratchet import HyperParameters
from ratchet.scenarios.gymnasium.catalogue import find_game

ENVIRONMENT = """
import gymnasium
from gymnasium.spaces import Box, Discrete


class Sized(gymnasium.Env):
    def __init__(self, sizes):
        self.observation_space = Box(-1, 1, (sum(sizes["seen"]),))
        self.action_space = Discrete(sizes["choices"])
"""


def test_nested_arguments_reach_the_constructor(tmp_path):
    (tmp_path / "sized.py").write_text(ENVIRONMENT)
    params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="sized.py:Sized",
        gymnasium={"environment_kwargs": {"sizes": {"seen": [2, 3], "choices": 4}}},
    )
    spaces = find_game(params, tmp_path).spaces().by_name["agent"]
    assert (spaces.observation_size, spaces.actions.sizes) == (5, (4,))
    assert HyperParameters.from_dict(params.to_dict(), tmp_path) == params
