"""Phases: resolution, overrides, and parameters that they must not change."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import expand_paths
from ratchet.parameters.curriculum import read_phases
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reading.deep_merge import merge_changes
from ratchet.tracking.manifest import describe_phases
from trainers.compatibility import check_combination

AGENTS = ("prover", "verifier")
FIRST = {"name": "first", "num_iterations": 3, "learners": ["verifier"]}
SECOND = {"name": "second", "num_iterations": 4}


def experiment(*phases, **more):
    data = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "er1000"}
    return HyperParameters(**{**data, "phases": list(phases), **more})


def read(*phases, **more):
    return read_phases(experiment(*phases, **more), AGENTS)


def test_phases_have_parameters_of_their_own_and_one_count_of_iterations():
    hyper_params = experiment(
        {**FIRST, "partners": {"prover": "hand_made"}, "changes": {"rl.lr": 0.1}}, SECOND
    )
    first, second = read_phases(hyper_params, AGENTS)
    assert hyper_params.rl.num_iterations == 7
    assert [(each.start, each.stop) for each in (first, second)] == [(0, 3), (3, 7)]
    assert describe_phases(hyper_params.to_dict()) == "first 0–3 · second 3–7"
    assert first.hyper_params.rl.lr == 0.1 != second.hyper_params.rl.lr
    assert first.hyper_params.rl.num_iterations == 3
    assert first.hyper_params.agents["prover"].use_manual_architecture
    assert not second.hyper_params.agents["prover"].use_manual_architecture
    assert first.hyper_params.phases == ()
    assert HyperParameters.from_dict(hyper_params.to_dict()) == hyper_params


def test_who_learns_is_what_the_update_schedules_say():
    frozen = {"name": "third", "num_iterations": 1, "partners": {"prover": "frozen"}}
    first, second, third = read(FIRST, SECOND, frozen)
    assert third.replaced == (), "a frozen agent acts with its own weights"
    for phase, expected in ((first, ("verifier",)), (second, AGENTS), (third, ("verifier",))):
        agents = phase.hyper_params.agents
        for iteration in range(3):
            on = [name for name in AGENTS if agents[name].update_schedule.is_on(iteration, name)]
            assert tuple(on) == phase.learners == expected


def test_a_partner_is_only_of_its_own_kind():
    prover = {"use_manual_architecture": True, "load_checkpoint_and_parameters": True}
    partners = {"partners": {"prover": "random"}}
    first, second = read({**FIRST, **partners}, SECOND, agents={"prover": prover})
    assert first.replaced == ("prover",)
    agent = first.hyper_params.agents["prover"]
    assert (agent.is_random, agent.use_manual_architecture) == (True, False)
    assert not agent.load_checkpoint_and_parameters
    assert second.learners == ("verifier",), "a scripted agent does not learn by default"


def test_a_pool_has_the_states_after_each_period_of_the_phases_in_which_an_agent_learned():
    learned = {"name": "before", "num_iterations": 5, "learners": ["prover"]}
    pool = {**FIRST, "partners": {"prover": {"kind": "pool", "every": 2}}}
    assert read(SECOND, learned, pool)[2].pools == {"prover": (2, 4, 6, 8, 9)}
    pool["partners"] = {"prover": {"kind": "pool", "phases": ["before"]}}
    assert read(SECOND, learned, pool)[2].pools == {"prover": (9,)}


def test_changes_of_the_default_agent_are_every_agents():
    changes = {"agents._default.body_lr_factor.actor": 0.5, "agents.prover.body_lr_factor.actor": 2}
    named = {"verifier": {"num_gnn_layers": 2}, "_default": {"num_gnn_layers": 3}}
    (first,) = read({**FIRST, "changes": changes}, agents=named)
    agents = first.hyper_params.agents
    assert (agents["verifier"].body_lr_factor.actor, agents["prover"].body_lr_factor.actor) == (
        0.5,
        2,
    )
    assert (agents["verifier"].num_gnn_layers, agents["prover"].num_gnn_layers) == (2, 3)


def test_a_schedule_of_the_default_agent_is_that_of_who_learns():
    schedule = {"kind": "contiguous_periodic", "period": 4, "start": 0, "stop": 1}
    changes = {"agents._default.update_schedule": schedule}
    (first,) = read({**FIRST, "changes": changes}, agents={"verifier": {"num_gnn_layers": 2}})
    on = {
        name: [first.hyper_params.agents[name].update_schedule.is_on(i, name) for i in range(3)]
        for name in AGENTS
    }
    assert on == {"prover": [False, False, False], "verifier": [True, False, False]}


def test_rounds_are_bounded_for_the_protocol_that_is_played():
    bounds = {"min_message_rounds": 3, "max_message_rounds": 3}
    (first,) = read({**FIRST, **bounds}, interaction_protocol="debate")
    section = first.hyper_params.debate_protocol
    assert (section.min_message_rounds, section.played_message_rounds) == (3, 3)
    assert section.max_message_rounds == 8, "networks are built for it"


def test_a_changed_phase_removes_the_number_of_iterations_unless_it_is_set():
    data = {"phases": [{"name": "first", "num_iterations": 3}], "rl": {"num_iterations": 3}}
    change = {"phases": {"first": {"num_iterations": 4}}}
    assert merge_changes(data, change)["rl"] == {}
    change["rl"] = {"num_iterations": 4}
    assert merge_changes(data, change)["rl"] == {"num_iterations": 4}


def test_phases_are_changed_by_their_names():
    data = experiment(FIRST, SECOND).to_dict()
    change = expand_paths({"phases.second.num_iterations": 9, "phases.second.changes.rl.lr": 1}, "")
    changed = HyperParameters.from_dict(merge_changes(data, change))
    assert changed.rl.num_iterations == 12
    assert changed.phases[1].changes == {"rl": {"lr": 1}}
    assert changed.get("phases.second.num_iterations") == 9
    assert experiment(FIRST, SECOND).replace({"phases.first.learners": ["prover"]}).phases[
        0
    ].learners == ("prover",)
    with pytest.raises(ParameterError, match=r"phases\.secnd: there is no phase.*'second'"):
        merge_changes(data, {"phases": {"secnd": {"num_iterations": 9}}})


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (
            {"learners": ["verifer"]},
            r"phases\.first\.learners: 'verifer'.* Did you mean 'verifier'",
        ),
        ({"partners": {"provr": "random"}}, r"phases\.first\.partners\.provr: .*no such agent"),
        ({"fresh": ["provr"]}, r"phases\.first\.fresh: 'provr': .*no such agent"),
        ({"learners": []}, r"phases\.first\.learners: no agent learns"),
        (
            {"partners": {"verifier": "frozen"}},
            r"phases\.first\.partners\.verifier: got 'frozen' for an agent that learns",
        ),
        ({"partners": {"prover": "pool"}}, r"partners\.prover: got a pool.* learns in no phase"),
        ({"partners": {"prover": {"kind": "pool", "phases": []}}}, r"got a pool of no phases"),
        (
            {"changes": {"agents": 3}},
            r"first\.changes\.agents: got 3, expected parameters of agents",
        ),
        ({"changes": {"agents.prover": 3}}, r"first\.changes\.agents\.prover: got 3, expected"),
        ({"changes": {"seed": 1}}, r"phases\.first\.changes\.seed: must be the same in all phases"),
        ({"changes": {"scenario": "x"}}, r"phases\.first\.changes\.scenario: must be the same"),
        ({"changes": {"dataset": "x"}}, r"phases\.first\.changes\.dataset: must be the same"),
        (
            {"changes": {"graph_isomorphism.num_pairs": 9}},
            r"changes\.graph_isomorphism\.num_pairs: is read for data, game",
        ),
        (
            {"changes": {"agents.prover.d_gnn": 9}},
            r"changes\.agents\.prover\.d_gnn: affects the agent's network",
        ),
        ({"changes": {"agents.prover.is_random": True}}, r"set `partners: \{prover: random\}`"),
        ({"changes": {"rl.lrr": 1}}, r"phases\.first\.changes\.rl\.lrr: unknown.*'lr'"),
        ({"changes": {"rl.num_iterations": 1}}, r"set the phase's num_iterations"),
        ({"changes": {"rl.use_shared_body": False}}, r"use_shared_body: is read for networks"),
        (
            {"changes": {"agents.prover.update_schedule": {"kind": "constant"}}},
            r"update_schedule: 'prover' does not learn",
        ),
        ({"max_message_rounds": 9}, r"first\.max_message_rounds: expected .* <= 8, the experiment"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(phase, message):
    with pytest.raises(ParameterError, match=message):
        read({**FIRST, **phase})


@pytest.mark.parametrize(
    ("phases", "more", "message"),
    [
        ([{**FIRST, "num_iterations": 0}], {}, r"phases\.0\.num_iterations: got 0"),
        ([FIRST, FIRST], {}, r"phases: got \['first', 'first'\], expected each name once"),
        (
            [FIRST],
            {"rl": {"num_iterations": 4}},
            r"rl\.num_iterations: got 4, but the phases first",
        ),
        ([{**FIRST, "nme": 1}], {}, r"phases\.0\.nme: unknown parameter"),
    ],
)
def test_what_is_wrong_with_the_list_is_said(phases, more, message):
    with pytest.raises(ParameterError, match=message):
        experiment(*phases, **more)


def test_rounds_of_a_protocol_without_bounds_are_refused():
    with pytest.raises(ParameterError, match=r"'adp', which has no bounds on its rounds"):
        read({**FIRST, "max_message_rounds": 1}, interaction_protocol="adp")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": "solo_agent"}, r"phases: got 1 with the trainer 'solo_agent', expected one"),
        (
            {"interaction_protocol": "debate", "phases.first.partners": {"prover0": "hand_made"}},
            r"phases\.first: agents\.prover0\.use_manual_architecture: got",
        ),
        (
            {"phases.first.changes": {"protocol_common.zero_knowledge": True}},
            r"phases\.first: changes: got the agents",
        ),
    ],
)
def test_phases_that_do_not_go_together_with_the_rest_are_refused(changes, message):
    with pytest.raises(ParameterError, match=message):
        check_combination(experiment(FIRST).replace(changes))


def test_agents_of_a_pool_have_no_network_with_others():
    pytest.importorskip("mpe2")
    groups = [{"shared_model_group": "both", "observes_agent_id": True}] * 2
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="mpe2.simple_spread_v3",
        gymnasium={"environment_kwargs": {"N": 3}},
        agents=dict(zip(("agent_1", "agent_2"), groups, strict=True)),
        phases=[
            {"name": "first", "num_iterations": 1},
            {
                "name": "second",
                "num_iterations": 1,
                "learners": ["agent_0"],
                "partners": {"agent_1": "pool", "agent_2": "frozen"},
            },
        ],
    )
    with pytest.raises(
        ParameterError, match="got a pool, but 'agent_1' shares a model with 'agent_2'"
    ):
        check_combination(hyper_params)


def test_frozen_agents_have_no_network_with_one_that_learns():
    pytest.importorskip("mpe2")
    phase = {"name": "first", "num_iterations": 1, "learners": ["agent_1"]}
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="mpe2.simple_spread_v3",
        gymnasium={"environment_kwargs": {"N": 2}},
        agents={"_default": {"shared_model_group": "both", "observes_agent_id": True}},
        phases=[phase],
    )
    with pytest.raises(
        ParameterError, match=r"'agent_0' shares a model with 'agent_1'.*both or none"
    ):
        check_combination(hyper_params)
