"""Steps of text episodes, alone and in batches."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from ratchet import HyperParameters
from ratchet.errors import DataError, ParameterError, ProtocolSpecificationError, RolloutError
from ratchet.protocols.base import SingleVerifierProtocolHandler
from ratchet.protocols.checks import check_text_specs
from ratchet.protocols.debate import DebateProtocolHandler
from ratchet.protocols.handler import ProtocolStep, rounds_and_seeds
from ratchet.protocols.nip import NipProtocolHandler
from ratchet.protocols.registry import build_protocol_handler, check_protocol_parameters
from ratchet.protocols.text_specs import TextAgentSpec
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.rollouts.outcomes import rollout_statistics
from ratchet.rollouts.specs import NO_DECISION
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.pure_text.playing import advance_episode, begin_episode, whose_turn
from ratchet.scenarios.pure_text.rollout import episode_to_rollout
from ratchet.scenarios.pure_text.views import view_of


class OrderBySeed(SingleVerifierProtocolHandler):
    """The first agent is sampled by the seed."""

    agent_names = ("prover", "verifier")
    max_message_rounds = 5
    min_message_rounds = 2

    def can_agent_be_active(self, agent_name, round, channel_name):
        return True

    def get_active_agents_mask_from_rounds_and_seed(self, round, seed):
        rounds, seeds = rounds_and_seeds(round, seed)
        verifier = ((rounds + seeds % 3) % 2 == 0) & (rounds < self.max_message_rounds)
        prover = ~verifier & (rounds < self.max_message_rounds)
        return torch.stack([prover, verifier], -1).unsqueeze(-1)

    text_agent_spec = NipProtocolHandler.text_agent_spec


class MoodyJudge(OrderBySeed):
    """The outcome of a decision also depends on the seed."""

    def judge(self, round, seed, y, decision, *, ended):
        outcome = super().judge(round, seed, y, decision, ended=ended)
        last = torch.as_tensor(round) == self.max_message_rounds - 1
        in_mood = (torch.as_tensor(seed) % 2 == 0) | last
        return outcome._replace(decided=outcome.decided & in_mood)


class ProverMayResign(NipProtocolHandler):
    """A custom judgement: it reads the prover's decision, and the prover may be done."""

    def step_interaction_protocol(self, env_td):
        step = super().step_interaction_protocol(env_td)
        prover = torch.as_tensor(env_td["agents", "decision"])[..., 0]
        over = torch.as_tensor(env_td["done"]) | torch.as_tensor(env_td["agents", "done"])[..., 0]
        resigns = (prover == 0) & (torch.as_tensor(env_td["round"]) >= 1) & ~over
        reward = step.reward.clone()
        reward[..., 0] -= resigns.float()
        agent_done = step.agent_done.clone()
        agent_done[..., 0] |= resigns
        return ProtocolStep(step.shared_done, agent_done, step.terminated, reward)


class FirstProverChooses(DebateProtocolHandler):
    """The first debater's messages choose the sides."""

    def text_agent_spec(self, agent_name):
        spec = super().text_agent_spec(agent_name)
        return replace(spec, argued_decision=side_of) if agent_name == "prover0" else spec


def side_of(text):
    return sum(map(ord, text)) % 2


@pytest.mark.parametrize("protocol", ["nip", "mnip", "merlin_arthur", OrderBySeed, ProverMayResign])
def test_actions_out_of_turn_and_after_the_end_change_nothing(protocol, make_text_game):
    game = make_text_game(protocol, eagerness=0.4)
    environment, seeds = game.environment, np.arange(24)
    state = environment.reset(seeds % 4, seeds)
    for _ in range(environment.max_rounds):
        active, outputs = environment.active_agents(state), game.outputs(state)
        in_turn = outputs.clone()
        in_turn["agents", "message"][~active] = None
        in_turn["agents", "raw_message"][~active.any(-1)] = None
        in_turn["agents", "decision"][~active.any(-1)] = NO_DECISION
        following, reward = environment.step(state, outputs)
        same, same_reward = environment.step(state, in_turn)
        assert same == following
        assert np.array_equal(same_reward, reward)
        over = state["done"]
        assert not active[over].any()
        assert following[over] == state[over]
        assert not reward[over].any()
        state = following
    assert state["done"].all()
    assert state["agents", "done"].all()


def test_a_judge_may_read_the_seed_of_episodes_played_alike(make_text_game, make_action):
    game = make_text_game(MoodyJudge)
    for seed in (0, 3):  # the same order of play
        episode = begin_episode(game.environment, 0, seed)
        for speaker, decision in (
            ("verifier", NO_DECISION),
            ("prover", NO_DECISION),
            ("verifier", 1),
        ):
            action = make_action({}, "raw", decision=decision)
            episode = advance_episode(game.environment, episode, {speaker: action})
        assert episode.done == (seed == 0)


def test_an_agent_may_be_done_before_the_episode(make_text_game, make_action):
    game = make_text_game(ProverMayResign)
    says, resigns = make_action({"main": "x"}, "x"), make_action({"main": "x"}, "x", decision=0)
    episode = begin_episode(game.environment, 0, 0)
    for action in (says, resigns, says):
        episode = advance_episode(game.environment, episode, dict.fromkeys(game.agents, action))
    assert (episode.agents_done, episode.done) == ((True, False), False)
    assert episode.steps[1].rewards == (-1.0, 0.0)
    assert [turn.channels for turn in whose_turn(game.environment.rules, episode)] == [(), ()]


def one_decision(make_text_game, decision, confidence, *, protocol="nip", valid=True, **changes):
    """Return the rewards of prover and verifier for a first decision, if 0 is correct."""
    game = make_text_game(protocol, **{f"protocol_common__{k}": v for k, v in changes.items()})
    environment = game.environment
    episode = begin_episode(environment, 0, 0)
    made = game.agents["verifier"].action(view_of(environment.rules, episode.position, "verifier"))
    action = replace(made, decision=decision, confidence=confidence, valid=valid)
    return advance_episode(environment, episode, {"verifier": action}).steps[-1].rewards


@pytest.mark.parametrize("protocol", ["nip", ProverMayResign])
def test_an_unsure_decision_is_paid_as_chance_would_be(protocol, make_text_game):
    scale = {"verifier_decision_scale": "likert_scale_4"}
    pay = {"protocol": protocol, "prover_reward": 2.0, **scale}
    assert one_decision(make_text_game, 0, 1.0, **pay) == (0.0, 1.0)
    assert one_decision(make_text_game, 0, 0.5, **pay) == (0.5, 0.5)
    assert one_decision(make_text_game, 1, 0.5, **pay) == (1.5, -0.5)
    assert one_decision(make_text_game, 1, 0.5) == (1.0, -1.0), "without a scale all are sure"


def test_a_reply_that_could_not_be_read_costs(make_text_game):
    unread = {"decision": 2, "confidence": 1.0, "valid": False}
    assert one_decision(make_text_game, **unread) == (0.0, 0.0)
    penalty = {"invalid_response_penalty": -0.5}
    assert one_decision(make_text_game, **unread, **penalty) == (0.0, -0.5)
    assert one_decision(make_text_game, 0, 1.0, **penalty) == (0.0, 1.0)


def test_rollouts_say_how_sure_decisions_were_only_where_they_can_be(make_text_game):
    scale = {"protocol_common__verifier_decision_scale": "likert_scale_4"}
    for changes in ({}, scale):
        game = make_text_game("nip", eagerness=1.0, **changes)
        episode = begin_episode(game.environment, 0, 2)
        view = view_of(game.environment.rules, episode.position, "verifier")
        action = replace(game.agents["verifier"].action(view), decision=1, confidence=0.5)
        after = advance_episode(game.environment, episode, {"verifier": action})
        rollout = episode_to_rollout(game.environment, after)
        stats = rollout_statistics(rollout, ["prover", "verifier"], "verifier")
        assert (("agents", "confidence") in rollout) == bool(changes)
        assert stats.get("mean_confidence") == (0.5 if changes else None)
        assert stats.get("brier_score") == (0.75**2 if changes else None)


@pytest.mark.parametrize("name", ["verifier_decision_scale", "invalid_response_penalty"])
def test_what_only_words_can_say_is_refused_elsewhere(name):
    value = {"verifier_decision_scale": "out_of_10", "invalid_response_penalty": -1.0}[name]
    graphs = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="generated",
        protocol_common={name: value},
    )
    with pytest.raises(ParameterError, match=rf"protocol_common.{name}: .*text scenario"):
        check_protocol_parameters(graphs)


def test_seeds_change_what_is_played_where_they_should(make_text_game):
    for protocol, orders in ((OrderBySeed, 2), ("merlin_arthur", 2), ("nip", 1)):
        inner = make_text_game(protocol).environment.rules
        seen = [inner.turns(seed) for seed in range(12)]
        assert len({tuple(str(turn) for row in turns for turn in row) for turns in seen}) == orders


def test_states_and_steps_are_as_the_specs_say(make_text_game):
    game = make_text_game("mnip")
    environment = game.environment
    state = environment.reset([0, 1, 2], [5, 6, 7])
    assert state["question"].tolist() == ["question 0", "question 1", "question 2"]
    assert state["y"].tolist() == [0, 1, 0]
    for _ in range(3):
        for spec in (environment.observation_spec, environment.state_spec, environment.done_spec):
            spec.check(state, allow_more=True)
        outputs = environment.action_spec.zeros(3)
        environment.action_spec.check(outputs)
        outputs["agents", "decision"][:] = 2
        before = state.clone()
        following, reward = environment.step(state, outputs)
        assert state == before
        assert reward.shape == (3, 3)
        assert reward.dtype == environment.reward_spec["agents", "reward"].dtype
        state = following


def test_a_batch_may_be_empty(make_text_game):
    environment = make_text_game("nip").environment
    state = environment.reset([], [])
    state, reward = environment.step(state, environment.action_spec.zeros(0))
    assert (len(state), reward.shape) == (0, (0, 2))


def test_how_much_an_iteration_is(make_text_parameters, make_text_dataset):
    def made(train, **changes):
        hyper_params = make_text_parameters("nip", **changes)
        handler = build_protocol_handler(hyper_params)
        return PureTextEnvironment(hyper_params, make_text_dataset(9), handler, train=train)

    environment = made(True, rl__rollouts_per_iteration=5)
    assert environment.num_rollouts_per_iteration == environment.num_envs == 5
    assert environment.frames_per_batch == 40
    assert environment.batch_size == (5,)
    assert made(True).num_rollouts_per_iteration == 9
    assert made(False).num_rollouts_per_iteration == 9


def test_a_dataset_without_a_field_is_refused(make_text_parameters, make_text_dataset):
    hyper_params = make_text_parameters("nip")
    data = make_text_dataset().data.select("question", "y", "datapoint_id")
    handler = build_protocol_handler(hyper_params)
    with pytest.raises(DataError, match=r"no \['solution'\]"):
        PureTextEnvironment(hyper_params, NestedArrayDictDataset(data), handler, train=True)


@pytest.mark.parametrize("protocol", ["debate", "mnip", "merlin_arthur", "solo_verifier"])
def test_a_stance_is_drawn_for_a_single_prover_only(protocol, make_text_parameters):
    hyper_params = make_text_parameters(protocol, protocol_common__randomize_prover_stance=True)
    with pytest.raises(ParameterError, match="randomize_prover_stance"):
        build_protocol_handler(hyper_params)


def test_zero_knowledge_is_refused(make_text_game, make_text_parameters):
    hyper_params = make_text_parameters("nip", protocol_common__zero_knowledge=True)
    with pytest.raises(ParameterError, match="zero_knowledge"):
        build_protocol_handler(hyper_params)
    with pytest.raises(ParameterError, match="zero_knowledge"):  # in the environment, too
        make_text_game(NipProtocolHandler, protocol_common__zero_knowledge=True)


def test_a_protocol_that_says_nothing_of_text_is_refused(make_text_game):
    with pytest.raises(ProtocolSpecificationError, match="text_agent_spec"):
        make_text_game("multi_channel_test")


class Crowded(NipProtocolHandler):
    """Both write in one channel in the same round."""

    def is_agent_active(self, agent_name, round, channel_name):
        return round == 3


class CrowdedForSomeSeeds(OrderBySeed):
    """Both write in the same round, for seeds that are not among the first."""

    def get_active_agents_mask_from_rounds_and_seed(self, round, seed):
        rounds, seeds = rounds_and_seeds(round, seed)
        usual = super().get_active_agents_mask_from_rounds_and_seed(rounds, seeds)
        return usual | (seeds > 1000)[..., None, None]


def test_two_speakers_in_one_channel_are_refused(make_text_game, make_action):
    with pytest.raises(ProtocolSpecificationError, match=r"round 3 .*'main'.*prover.*verifier"):
        make_text_game(Crowded)
    game = make_text_game(CrowdedForSomeSeeds)
    state = game.environment.reset([0], [2000])
    with pytest.raises(ProtocolSpecificationError, match="at most one"):
        game.environment.step(state, game.outputs(state))
    both = dict.fromkeys(game.agents, make_action({"main": "x"}, "x"))
    with pytest.raises(ProtocolSpecificationError, match="at most one"):
        advance_episode(game.environment, begin_episode(game.environment, 0, 2000), both)


class Endless(NipProtocolHandler):
    """Its judge never ends an episode."""

    def judge(self, round, seed, y, decision, *, ended):
        outcome = super().judge(round, seed, y, decision, ended=ended)
        return outcome._replace(terminated=torch.zeros_like(outcome.terminated))


def test_a_protocol_that_goes_on_after_its_last_round_is_refused(make_text_game, make_action):
    game = make_text_game(Endless, nip_protocol__max_message_rounds=1)
    state = game.environment.reset([0], [0])
    outputs = game.environment.action_spec.blank(1)
    with pytest.raises(ProtocolSpecificationError, match="continues after round 0"):
        game.environment.step(state, outputs)
    with pytest.raises(ProtocolSpecificationError, match="continues after round 0"):
        advance_episode(
            game.environment,
            begin_episode(game.environment, 0, 0),
            {"verifier": make_action({"main": "x"}, "x")},
        )


def test_a_step_after_the_end_or_without_an_agent_is_refused(make_text_game, make_action):
    game = make_text_game("solo_verifier")
    episode = begin_episode(game.environment, 2, 0)
    with pytest.raises(RolloutError, match=r"datapoint 2, round 0.*\['verifier'\]"):
        advance_episode(game.environment, episode, {})
    done = advance_episode(
        game.environment, episode, {"verifier": make_action({}, "x", decision=1)}
    )
    with pytest.raises(RolloutError, match="over"):
        advance_episode(game.environment, done, {})


def test_several_steps_can_be_played_from_one_episode(make_text_game, make_action):
    game = make_text_game("nip")
    root = begin_episode(game.environment, 1, 0)
    first, second = (
        advance_episode(
            game.environment, root, {"verifier": make_action({"main": text}, text)}, node_id=node
        )
        for node, text in enumerate(("a", "b"), start=5)
    )
    assert root.steps == ()
    assert [e.steps[0].node_id for e in (first, second)] == [5, 6]
    assert [e.position.messages[0].text for e in (first, second)] == ["a", "b"]


@pytest.mark.parametrize("decision", [0, 1])
@pytest.mark.parametrize("argued", [0, 1])
def test_debaters_are_paid_for_the_side_that_one_of_them_argues_for(
    argued, decision, make_text_game, make_action
):
    game = make_text_game(
        FirstProverChooses,
        debate_protocol__sequential=True,
        protocol_common__verifier_first=False,
        protocol_common__prover_reward=3.0,
    )
    environment, rules = game.environment, game.environment.rules
    text = next(word for word in ("a", "b") if side_of(word) == argued)
    episode = begin_episode(environment, 0, 0)
    assert view_of(rules, episode.position, "prover0").stance == 0  # as in debate
    episode = advance_episode(
        environment, episode, {"prover0": make_action({"prover0_channel": text}, "raw")}
    )
    assert view_of(rules, episode.position, "prover0").stance == argued
    assert view_of(rules, episode.position, "prover1").stance == 1 - argued
    episode = advance_episode(
        environment, episode, {"prover1": make_action({"prover1_channel": "c"}, "raw")}
    )
    episode = advance_episode(
        environment, episode, {"verifier": make_action({}, "raw", decision=decision)}
    )
    won = {argued: 3.0, 1 - argued: 0.0}
    assert episode.steps[-1].rewards[:2] == (won[decision], won[1 - decision])
    assert episode_to_rollout(environment, episode)["prover_stance"].tolist() == [1 - argued]


class PaidForRejection(NipProtocolHandler):
    """Without sampled stances, the prover is rewarded for 0."""

    prover_paid_decisions: ClassVar = {"prover": 0}


@pytest.mark.parametrize("stance", [0, 1])
def test_a_sampled_stance_is_the_decision_that_rewards_a_single_prover(
    stance, make_text_game, make_action
):
    game = make_text_game(
        PaidForRejection,
        protocol_common__randomize_prover_stance=True,
        protocol_common__prover_reward=3.0,
    )
    environment = game.environment
    seed = next(seed for seed in range(64) if environment.prover_stance(seed) == stance)
    episode = begin_episode(environment, 0, seed)
    assert view_of(environment.rules, episode.position, "prover").stance == stance
    decides = {"verifier": make_action({}, "raw", decision=stance)}
    assert advance_episode(environment, episode, decides).steps[-1].rewards[0] == 3.0


class VerifierChooses(NipProtocolHandler):
    """The verifier is not rewarded for a side."""

    def text_agent_spec(self, agent_name):
        return replace(super().text_agent_spec(agent_name), argued_decision=side_of)


def test_an_argued_decision_is_one(make_text_game, make_action):
    game = make_text_game(FirstProverChooses, protocol_common__verifier_first=False)
    spec = replace(game.environment.rules.specs["prover0"], argued_decision=lambda text: 2)
    game.environment.rules.specs["prover0"] = spec
    actions = {f"prover{p}": make_action({f"prover{p}_channel": "?"}, "raw") for p in (0, 1)}
    with pytest.raises(ProtocolSpecificationError, match=r"got 2 for the message '\?'"):
        advance_episode(game.environment, begin_episode(game.environment, 0, 0), actions)


class NoHeader(NipProtocolHandler):
    """The prover has no header for where it writes."""

    def text_agent_spec(self, agent_name):
        return TextAgentSpec(agent_name, {"main": "Q:"} if agent_name == "verifier" else {})


class SameName(NipProtocolHandler):
    """Both are called the same."""

    def text_agent_spec(self, agent_name):
        return TextAgentSpec("Player", {"main": f"{agent_name}:"})


class WrongChannel(NipProtocolHandler):
    """A header for a channel that isn't there."""

    def text_agent_spec(self, agent_name):
        return TextAgentSpec(agent_name, {"mian": "Q:", "main": "A:"})


class MuteVerifier(NipProtocolHandler):
    """The verifier only decides, and may not yet."""

    min_message_rounds = 4

    def text_agent_spec(self, agent_name):
        return TextAgentSpec(agent_name, {} if agent_name == "verifier" else {"main": "A:"})


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (NoHeader, r"'prover'\).*\['main'\]"),
        (SameName, "'Player', 'Player'"),
        (WrongChannel, "mian"),
        (MuteVerifier, "in round 0 .*may not decide yet"),
        (VerifierChooses, r"'verifier'\).argued_decision: expected None.*\['prover'\]"),
    ],
)
def test_specs_that_contradict_the_protocol_are_refused(protocol, message, make_text_game):
    with pytest.raises(ProtocolSpecificationError, match=message):
        make_text_game(protocol)


def test_the_specs_of_the_built_in_protocols_are_checked_and_complete(make_text_parameters):
    for protocol in ("nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier"):
        specs = check_text_specs(build_protocol_handler(make_text_parameters(protocol)))
        assert all(
            spec.anonymous == (protocol == "merlin_arthur" and spec.human_name != "Verifier")
            for spec in specs.values()
        )
