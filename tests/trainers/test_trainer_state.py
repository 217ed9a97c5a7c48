"""A state saves without pickle, loads equal, and reports mismatches."""

from __future__ import annotations

import json

import pytest
import torch

from ratchet.errors import CheckPointNotFoundError, StateError
from trainers.tensordict.states.state import State


def _state():
    return State(
        iteration=3,
        stage="train",
        agents={"prover": {"body.weight": torch.randn(2, 3)}, "verifier": {}},
        normalization={"observations": {"x_mean": torch.tensor(0.5)}},
        optimizer={"p": {"step": torch.tensor(7.0), "exp_avg": torch.full((2,), float("nan"))}},
        controllers={"loss": {"kl_beta": torch.tensor([1.0, 2.0], dtype=torch.float64)}},
        data_cursor={"epoch": 1, "position": 5},
    )


def test_a_state_loads_equal_and_without_pickle(tmp_path):
    state = _state()
    del state.agents["verifier"]
    state.save(tmp_path / "state")
    assert State.load(tmp_path / "state") == state
    names = {path.name for path in (tmp_path / "state").iterdir()}
    assert names == {"state.safetensors", "state.json"}


def test_states_differ_in_a_single_bit():
    one, other = _state(), _state()
    other.agents = {"prover": {"body.weight": one.agents["prover"]["body.weight"].clone()}}
    one.agents.pop("verifier")
    assert one == other
    other.agents["prover"]["body.weight"].view(torch.int32)[0, 0] ^= 1
    assert one != other
    assert one != _state()
    assert one != "state"


def test_a_missing_state_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(CheckPointNotFoundError, match=r"state\.safetensors is missing"):
        State.load(tmp_path)


def test_a_damaged_state_is_named(tmp_path):
    _state().save(tmp_path)
    (tmp_path / "state.safetensors").write_bytes(b"\x01")
    with pytest.raises(StateError, match="is damaged"):
        State.load(tmp_path)


def test_a_state_of_another_schema_is_refused(tmp_path):
    _state().save(tmp_path)
    values = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**values, "schema": 99}))
    with pytest.raises(StateError, match="another schema"):
        State.load(tmp_path)


def test_a_state_of_other_widths_says_which_tensor_and_both_shapes(tiny):
    state = tiny.trainer(tiny.parameters()).initial_state()
    wider = tiny.trainer(tiny.parameters(d_representation=8))
    with pytest.raises(StateError, match=r"agent 'prover': .* is \(4, .* expected \(8, "):
        wider.state = state


def test_a_state_of_another_protocol_is_refused(tiny):
    state = tiny.trainer(tiny.parameters()).initial_state()
    debate = tiny.trainer(tiny.parameters(interaction_protocol="debate"))
    with pytest.raises(StateError, match="belongs to another protocol"):
        debate.state = state


def test_an_optimizer_state_of_another_parameter_is_refused(tiny):
    trainer = tiny.trainer(tiny.parameters())
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    state = trainer.state
    name = next(iter(state.optimizer))
    state.optimizer["parts.nobody.weight"] = state.optimizer.pop(name)
    with pytest.raises(StateError, match=r"optimizer: the state has 'parts\.nobody\.weight'"):
        trainer.state = state


def test_there_is_no_state_before_the_beginning(tiny):
    trainer = tiny.trainer(tiny.parameters())
    with pytest.raises(StateError, match="no state yet"):
        _ = trainer.state
    with pytest.raises(StateError, match="or missing"):
        trainer.run_iterations(0, 1)
    trainer.initial_state()
    with pytest.raises(StateError, match="got start=2, but the state is after 0"):
        trainer.run_iterations(2, 3)
