"""Batched environments: histories, turns, ends and resets, under several protocols."""

import pytest
import torch

from ratchet.errors import DataError, ParameterError
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.graph_isomorphism.scenario import GraphIsomorphismEnvironment

PROTOCOLS = {
    "nip": {},
    "adp": {},
    "debate": {},
    "debate, sequential": {"debate_protocol": {"sequential": True}},
    "merlin_arthur": {},
    "mnip": {},
    "solo_verifier": {},
    "multi_channel_test": {},
    "nip, zero knowledge": {"protocol_common": {"zero_knowledge": True}},
    "nip, linear": {"include_linear_message_space": True, "message_size": 2},
}


@pytest.fixture(params=PROTOCOLS)
def environment(request, make_environment):
    return make_environment(request.param.split(",")[0], **PROTOCOLS[request.param])


def start(environment, size: int = 12):
    return environment.reset(torch.arange(size) % 40, torch.arange(size) * 7)


def test_states_and_actions_fit_the_specs(environment, random_policy):
    td = start(environment, environment.num_envs)
    policy = random_policy(environment)
    for _ in range(environment.max_rounds):
        acted = policy(td)
        following = environment.step(acted)
        for spec in (environment.observation_spec, environment.state_spec, environment.done_spec):
            assert spec.is_in(following.select(*spec.keys(True, True)))
        assert environment.action_spec.is_in(
            acted.select(*environment.action_spec.keys(True, True))
        )
        assert environment.reward_spec.is_in(
            following.select(*environment.reward_spec.keys(True, True))
        )
        td = following


def test_history_is_what_active_agents_said(environment, random_policy):
    """Replays every episode symbol by symbol in plain Python."""
    size = 12
    td = start(environment, size)
    policy = random_policy(environment, seed=1)
    expected, latest = torch.zeros_like(td["x"]), torch.zeros_like(td["message"])
    for _ in range(environment.max_rounds):
        acted = policy(td)
        active, message = td["agents", "active"], acted["agents", "message"]
        for episode in range(size):
            for channel in range(active.shape[-1]):
                if not active[episode, :, channel].any():
                    continue
                latest[episode, channel] = 0
                for agent in active[episode, :, channel].nonzero().flatten().tolist():
                    for place, symbol in enumerate(message[episode, agent, channel].tolist()):
                        latest[episode, channel, place, symbol] += 1
                        now = int(td["round"][episode])
                        expected[episode, now, channel, place, symbol] += 1
        td = environment.step(acted)
        assert torch.equal(td["x"], expected)
        assert torch.equal(td["message"], latest)
    assert td["done"].all()


def test_turns_follow_the_protocol_and_end_with_the_episode(environment, random_policy):
    handler = environment.protocol_handler
    td = start(environment)
    policy = random_policy(environment, seed=2)
    for _ in range(environment.max_rounds + 2):
        active = handler.get_active_agents_mask_from_rounds_and_seed(td["round"], td["seed"])
        playing = ~td["agents", "done"]
        assert torch.equal(td["agents", "active"], active & playing[..., None])
        assert not td["agents", "active"][td["done"]].any()
        assert not td["agents", "can_decide"][td["done"]].any()
        assert (td["agents", "active"].any(-1) | ~td["agents", "can_decide"]).all()
        early = td["round"] < handler.min_message_rounds - 1
        assert torch.equal(td["decision_restriction"], early.long())
        td = environment.step(policy(td))
    assert td["done"].all()
    assert td["agents", "done"].all()


def test_step_is_the_protocols_step(environment, random_policy):
    td = start(environment)
    policy = random_policy(environment, seed=3)
    for _ in range(environment.max_rounds):
        acted = policy(td)
        done, agent_done, terminated, reward = (
            environment.protocol_handler.step_interaction_protocol(acted)
        )
        following = environment.step(acted)
        assert torch.equal(following["done"], done | terminated)
        assert torch.equal(following["terminated"], terminated)
        assert torch.equal(following["agents", "done"], agent_done | following["done"][:, None])
        assert torch.equal(following["agents", "terminated"], following["agents", "done"])
        assert torch.equal(following["agents", "reward"], reward)
        td = following


def test_an_ended_episode_stays_as_it_is(environment, random_policy):
    td = start(environment)
    policy = random_policy(environment, seed=4)
    for _ in range(environment.max_rounds):
        td = environment.step(policy(td))
    after = environment.step(policy(td))
    assert not after["agents", "reward"].any()
    for key in td.keys(True, True):
        if key != ("agents", "reward"):
            assert torch.equal(after[key], td[key]), key


def test_nobody_who_is_silent_changes_anything(environment, random_policy):
    td = start(environment)
    first, second = random_policy(environment, 5)(td), random_policy(environment, 6)(td)
    active = td["agents", "active"]
    one, other = first["agents", "message"], second["agents", "message"]
    first["agents", "message"] = torch.where(active[..., None], other, one)
    if environment.num_linear_symbols is not None:
        speaks = active.any(-1)
        first["agents", "linear_message"] = torch.where(
            speaks, second["agents", "linear_message"], first["agents", "linear_message"]
        )
    first["agents", "decision"] = second["agents", "decision"]
    for key in ("x", "message"):
        assert torch.equal(environment.step(first)[key], environment.step(second)[key])


def test_step_leaves_its_input_alone(environment, random_policy):
    acted = random_policy(environment)(start(environment))
    before = acted.clone()
    environment.step(acted)
    assert (acted == before).all()


def test_reset_where_begins_new_episodes_only_there(environment, random_policy):
    td = start(environment)
    policy = random_policy(environment, seed=8)
    td = environment.step(policy(td))
    mask = torch.arange(12) % 3 == 0
    ids, seeds = torch.tensor([20, 21, 22, 23]), torch.tensor([1, 2, 3, 4])
    before = td.clone()
    state = environment.reset_where(td, mask, ids, seeds)
    assert (td == before).all()
    fresh = environment.reset(ids, seeds)
    for key in fresh.keys(True, True):
        assert torch.equal(state[key][mask], fresh[key]), key
        assert torch.equal(state[key][~mask], td[key][~mask]), key
    assert ("agents", "reward") not in state.keys(True)
    same = environment.reset_where(td, torch.zeros(12, dtype=bool), ids[:0], seeds[:0])
    assert torch.equal(same["x"], td["x"])
    with pytest.raises(DataError, match="reset_where"):
        environment.reset_where(td, mask, ids[:2], seeds[:2])


def test_linear_messages_are_kept_in_the_channels_of_their_agents(make_environment, random_policy):
    environment = make_environment("nip", include_linear_message_space=True)
    td = start(environment)
    policy = random_policy(environment, decide=False)
    for now in range(4):
        acted = policy(td)
        speaker = int(td["agents", "active"][0].any(-1).nonzero())
        td = environment.step(acted)
        said = td["linear_message_history"][:, now, 0]
        assert torch.equal(said.argmax(-1), acted["agents", "linear_message"][:, speaker])
        assert (said.sum(-1) == 1).all()
    assert not td["linear_message_history"][:, 4:].any()


def test_undecided_episodes_are_terminated(make_environment, random_policy):
    environment = make_environment("nip", nip_protocol={"max_message_rounds": 3})
    td = start(environment)
    policy = random_policy(environment, decide=False)
    for now in range(3):
        assert td["round"].eq(now).all()
        assert not td["done"].any()
        td = environment.step(policy(td))
    assert td["done"].all()
    assert td["terminated"].all()


def test_decisions_are_restricted_in_early_rounds(make_environment, random_policy):
    environment = make_environment(
        "nip", nip_protocol={"max_message_rounds": 6, "min_message_rounds": 4}
    )
    td = start(environment)
    policy = random_policy(environment)
    for now in range(4):
        assert td["decision_restriction"].eq(int(now < 3)).all()
        assert not td["done"].any()
        td = environment.step(policy(td))


def test_agents_see_graphs_but_no_labels(make_environment, small_datasets):
    environment = make_environment()
    ids = torch.tensor([[3, 1], [0, 3]])
    data = environment.gather_data(ids)
    assert sorted(data.keys()) == ["adjacency", "node_mask"]
    assert torch.equal(data["adjacency"], small_datasets["train"]["adjacency"][ids])
    assert environment.num_symbols == 14


def test_same_actions_same_episodes(environment, random_policy):
    histories = []
    for _ in range(2):
        td, policy = start(environment), random_policy(environment, seed=9)
        for _ in range(environment.max_rounds):
            td = environment.step(policy(td))
        histories.append(td)
    assert (histories[0] == histories[1]).all()


@pytest.mark.parametrize(
    ("rl", "expected"),
    [
        ({}, (125, 8)),
        ({"frames_per_batch": 1001}, (126, 8)),
        ({"frames_per_batch": None}, (40, 8)),
        ({"rollouts_per_iteration": 5}, (5, 8)),
        ({"frames_per_batch": 96, "steps_per_env_per_iteration": 16}, (6, 16)),
    ],
)
def test_frames_are_divided_among_episodes(make_environment, rl, expected):
    environment = make_environment(rl=rl)
    assert (environment.num_envs, environment.steps_per_env_per_iteration) == expected
    assert environment.frames_per_batch == expected[0] * expected[1]
    assert environment.batch_size == (expected[0],)
    test = make_environment(rl=rl, train=False)
    assert test.steps_per_env_per_iteration == 8
    assert test.num_envs <= 40


def test_steps_that_do_not_divide_frames_are_refused(make_environment):
    with pytest.raises(ParameterError, match=r"steps_per_env_per_iteration.* 1001 frames would do"):
        make_environment(rl={"steps_per_env_per_iteration": 7})


def test_a_dataset_without_its_fields_is_refused(make_environment, small_datasets):
    environment = make_environment()
    poor = TensorDictDataset(small_datasets["train"].td.select("y", "adjacency"))
    with pytest.raises(DataError, match="node_mask"):
        GraphIsomorphismEnvironment(
            environment.hyper_params, poor, environment.protocol_handler, train=True
        )
