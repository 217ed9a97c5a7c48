"""Labels that are functions of what was said."""

from __future__ import annotations

import pytest

from ratchet.errors import CustomCodeError
from ratchet.protocols.nip import NipProtocolHandler
from ratchet.protocols.registry import build_protocol_handler
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.pure_text.playing import advance_episode, begin_episode


class JudgesItself(NipProtocolHandler):
    """A protocol without a table of outcomes."""

    def step_interaction_protocol(self, env_td):
        return super().step_interaction_protocol(env_td)


@pytest.fixture
def labelled_game(make_text_game):
    """Return a game in which the label is whether "right" was said, and the labelled positions."""

    def make(protocol="nip", **changes):
        game = make_text_game(protocol, nip_protocol__max_message_rounds=4, **changes)
        labelled = []

        def label(position):
            labelled.append(position)
            return int("right" in [message.text for message in position.messages])

        game.environment.label = label
        return game, labelled

    return make


def say(game, make_action, *turns):
    """Play an episode on a datapoint with the label 0, from (text, decision) of each round."""
    episode = begin_episode(game.environment, 0, 0)
    for text, decision in turns:
        action = make_action({"main": text}, text, decision=decision)
        episode = advance_episode(game.environment, episode, dict.fromkeys(game.agents, action))
    return episode


@pytest.mark.parametrize("protocol", ["nip", JudgesItself])
@pytest.mark.parametrize(("said", "y"), [("right", 1), ("wrong", 0)])
@pytest.mark.parametrize("decision", [0, 1])
def test_a_decision_is_judged_by_the_label_of_what_was_said(
    protocol, said, y, decision, labelled_game, make_action
):
    game, labelled = labelled_game(protocol)
    episode = say(game, make_action, ("why?", 2), (said, 2), ("hm", decision))
    assert (episode.done, episode.y) == (True, y)
    assert episode.steps[-1].rewards == (float(decision), 1.0 if decision == y else -1.0)
    assert {position.round for position in labelled} == {2}, "only the decision is judged"
    assert [message.text for message in labelled[0].messages] == ["why?", said, "hm"]


def test_an_episode_without_a_decision_has_the_label_of_its_end(labelled_game, make_action):
    game, labelled = labelled_game()
    episode = say(game, make_action, ("a", 2), ("b", 2), ("c", 2), ("right", 2))
    assert (episode.terminated, episode.y, len(labelled)) == (True, 1, 1)
    assert labelled[0].round == 3


def test_a_forced_guess_is_the_label_of_what_was_said(labelled_game, make_action):
    forced = {"protocol_common__force_guess": "y"}
    for said, y in (("right", 1), ("wrong", 0)):
        game, _ = labelled_game(**forced)
        episode = say(game, make_action, (said, 2))
        assert (episode.y, episode.steps[-1].decisions[1]) == (y, y)


def test_a_batch_is_labelled_too(labelled_game):
    game, _ = labelled_game()
    state = game.environment.reset([0, 0], [0, 1])
    outputs = game.environment.action_spec.blank(2)
    outputs["agents", "message"][:, 1, 0] = ["right", "wrong"]
    outputs["agents", "decision"][:, 1] = 1
    following, reward = game.environment.step(state, outputs)
    assert following["y"].tolist() == [1, 0]
    assert reward[:, 1].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("label", [2, None, 0.5])
def test_a_label_is_zero_or_one(label, labelled_game, make_action):
    game, _ = labelled_game()
    game.environment.label = lambda position: label
    with pytest.raises(CustomCodeError, match=rf"datapoint 0, round 0: .*returned {label}, exp"):
        say(game, make_action, ("x", 1))


def test_a_dataset_needs_no_labels_then(make_text_parameters, make_text_dataset):
    hyper_params = make_text_parameters("nip")
    data = NestedArrayDictDataset(
        make_text_dataset().data.select("question", "solution", "datapoint_id")
    )
    environment = PureTextEnvironment(
        hyper_params,
        data,
        build_protocol_handler(hyper_params),
        train=True,
        label=lambda position: 1,
    )
    assert begin_episode(environment, 1, 0).y == 0
    assert environment.reset([1], [0])["y"].tolist() == [0]
