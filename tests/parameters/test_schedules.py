"""Update schedules determine the iterations in which an agent learns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import ParameterError
from ratchet.parameters import HyperParameters
from ratchet.parameters.agents import (
    AlternatingBlocksSchedule,
    AlternatingPeriodicSchedule,
    ContiguousPeriodicSchedule,
)
from ratchet.protocols import build_protocol_handler

TOP = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "er1000"}


def test_contiguous_learns_in_its_part_of_each_period() -> None:
    schedule = ContiguousPeriodicSchedule(period=4, start=1, stop=3)
    assert [schedule.is_on(i, "prover") for i in range(8)] == [False, True, True, False] * 2


@given(st.integers(1, 9), st.integers(0, 100))
def test_alternating_lets_exactly_one_of_two_learn(period: int, iteration: int) -> None:
    schedule = AlternatingPeriodicSchedule(period=period, first_agent="prover")
    assert schedule.is_on(iteration, "prover") != schedule.is_on(iteration, "verifier")
    assert schedule.is_on(iteration, "prover") == ((iteration // period) % 2 == 0)


BLOCKS = {
    "kind": "alternating_blocks",
    "blocks": [
        {"agents": ["prover0", "prover1"], "num_iterations": 3},
        {"agents": ["verifier"], "num_iterations": 1},
        {"agents": ["prover1", "verifier"], "num_iterations": 2},
    ],
}


def test_blocks_of_unequal_length_let_their_groups_learn_in_turn() -> None:
    schedule = AlternatingBlocksSchedule.model_validate(BLOCKS)
    learns = {
        name: "".join("x" if schedule.is_on(i, name) else "." for i in range(12))
        for name in ("prover0", "prover1", "verifier", "simulator")
    }
    assert learns == {
        "prover0": "xxx...xxx...",
        "prover1": "xxx.xxxxx.xx",
        "verifier": "...xxx...xxx",
        "simulator": "............",
    }


def test_blocks_are_saved_and_read_again() -> None:
    agents = {"_default": {"update_schedule": BLOCKS}}
    hyper_params = HyperParameters(**TOP, agents=agents)
    assert hyper_params.to_dict()["agents"]["_default"]["update_schedule"] == BLOCKS
    assert HyperParameters.from_dict(hyper_params.to_dict()) == hyper_params


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "alternating_blocks", "blocks": [{"agents": ["provr"], "num_iterations": 1}]},
        {"kind": "alternating_periodic", "period": 2, "first_agent": "provr"},
    ],
)
def test_a_schedule_that_names_an_agent_that_is_not_there_is_refused(schedule: object) -> None:
    hyper_params = HyperParameters(**TOP, agents={"_default": {"update_schedule": schedule}})
    expected = r"agents\._default\.update_schedule: 'provr': .* no such agent.*'prover'"
    with pytest.raises(ParameterError, match=expected):
        build_protocol_handler(hyper_params)


@pytest.mark.parametrize("short", ["constant", {"kind": "constant"}])
def test_constant_may_be_written_short(short: object) -> None:
    agents = {"prover": {"update_schedule": short}}
    hyper_params = HyperParameters(**TOP, agents=agents)
    assert hyper_params.agents["prover"].update_schedule.is_on(99, "prover")
    assert HyperParameters.from_dict(hyper_params.to_dict()) == hyper_params


def test_bounds_in_the_wrong_order_are_refused() -> None:
    schedule = {"kind": "contiguous_periodic", "period": 4, "start": 3, "stop": 2}
    with pytest.raises(ParameterError, match=r"agents\.prover\.update_schedule: .*start < stop"):
        HyperParameters(**TOP, agents={"prover": {"update_schedule": schedule}})


def test_an_agent_without_parameters_has_those_of_default() -> None:
    hyper_params = HyperParameters(**TOP, agents={"_default": {"d_gnn": 8}, "prover": {}})
    assert hyper_params.agents["prover"].d_gnn == hyper_params.agents["other"].d_gnn == 8
