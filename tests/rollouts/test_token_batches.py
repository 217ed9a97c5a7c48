"""Trajectories and batches: no value is lost, mixed up, or derived from a token's id."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import DataError
from ratchet.rollouts import (
    Batch,
    Trajectory,
    compute_position_id_with_mask,
    load_trajectories,
    padding_data,
    save_trajectories,
)

PAD = 0  # also the end token of these models, and a token of some prompts
floats = st.floats(-1e6, 1e6, width=32)


@st.composite
def trajectories(draw, advantages=False):
    mask = draw(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=6))
    size = len(mask)
    numbers = st.lists(floats, min_size=size, max_size=size)
    written = [x * m for x, m in zip(draw(numbers), mask, strict=True)]
    return Trajectory(
        tokens=draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)),
        loss_mask=mask,
        logprobs=written,
        reward=draw(floats),
        scores={"part": draw(floats)},
        group_id=draw(st.sampled_from("ab")),
        run_id=draw(st.sampled_from("xyz")),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        is_truncated=draw(st.booleans()),
        token_advantages=draw(numbers) if advantages else None,
        model_version=draw(st.integers(0, 5)),
    )


def one(tokens=(5, 0, 6), mask=(0, 1, 1), **kwargs):
    log_probs = [-0.5 * value for value in mask]
    return Trajectory(tokens=list(tokens), loss_mask=list(mask), logprobs=log_probs, **kwargs)


def plain(all_of_them):
    return [trajectory.to_dict() for trajectory in all_of_them]


@pytest.mark.parametrize("left_pad", [False, True])
@given(batch=st.lists(trajectories(advantages=True), max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_batch_gives_its_trajectories_back(left_pad, batch):
    made = Batch.from_trajectories(batch, PAD, left_pad=left_pad)
    assert len(made) == len(batch)
    made.check_required([name for name in made.values if name != "advantages" or batch])
    assert plain(made.to_trajectories()) == plain(batch)


@given(batch=st.lists(trajectories(advantages=True), min_size=1, max_size=4), data=st.data())
@settings(max_examples=40, deadline=None)
def test_row_operations_keep_together_what_belongs_together(batch, data):
    order = data.draw(st.permutations(range(len(batch))))
    multiple = data.draw(st.integers(1, 5))
    made = Batch.from_trajectories(batch, PAD).reorder(order).pad_to_multiple(multiple)
    made = padding_data(made, pad_token_id=PAD, max_length=9, left_pad=data.draw(st.booleans()))
    made = made.remove_redundant_left_padding().remove_redundant_right_padding()
    assert len(made) % multiple == 0
    assert plain(made.to_trajectories()) == plain([batch[row] for row in order])


def test_added_rows_weigh_nothing():
    made = Batch.from_trajectories([one(reward=2.0, group_id="g", advantage=3.0)], PAD)
    made.values["my_field"] = torch.ones(1)
    padded = made.pad_to_multiple(4)
    assert padded.is_padding.tolist() == [False, True, True, True]
    for name in ("loss_mask", "token_level_scores", "advantages", "rollout_log_probs", "my_field"):
        assert padded.values[name][1:].abs().sum() == 0
    assert padded.values["attention_mask"].sum(1).tolist() == [3, 1, 1, 1]
    assert padded.metadata["rewards"].tolist() == [2.0, 0.0, 0.0, 0.0]
    assert padded.metadata["group_ids"] == ["g", "", "", ""]
    assert len(padded.to_trajectories()) == 1
    assert padded.pad_to_multiple(3).is_padding.tolist() == [False] + [True] * 5


def test_padding_is_what_the_mask_says_even_if_pad_and_end_token_are_the_same():
    batch = [one((0, 0, 5, 0), (0, 0, 1, 1)), one((0, 0), (0, 1))]
    made = Batch.from_trajectories(batch, PAD)
    wide = padding_data(made, pad_token_id=PAD, max_length=7, left_pad=True)
    assert wide.values["input_ids"].tolist() == [[0, 0, 0, 0, 0, 5, 0], [0] * 7]
    cut = Batch.remove_redundant_left_padding(
        wide, pad_token_id=PAD, anchor_field="input_ids", fields=["input_ids", "loss_mask"]
    )
    assert {value.shape for value in cut.values.values()} == {(2, 4)}
    assert plain(cut.to_trajectories()) == plain(batch)
    right = padding_data(cut, pad_token_id=PAD, max_length=9)
    assert right.remove_redundant_right_padding(PAD).values["input_ids"].shape == (2, 4)
    assert wide.values["position_ids"].tolist() == [[0, 0, 0, 0, 1, 2, 3], [0, 0, 0, 0, 0, 0, 1]]
    left = Batch.from_trajectories(batch, PAD, left_pad=True)
    assert left.values["position_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]


def test_a_batch_is_never_cut_to_nothing():
    empty = Batch.from_trajectories([], PAD)
    hidden = Batch.from_trajectories([one()], PAD)
    hidden.values["attention_mask"].zero_()
    for batch in (empty, hidden):
        for cut in (batch.remove_redundant_left_padding(), batch.remove_redundant_right_padding()):
            assert cut.values["input_ids"].shape == (len(batch), 1)
        assert padding_data(batch, pad_token_id=PAD).values["input_ids"].shape == (len(batch), 1)
    assert len(empty) == len(empty.pad_to_multiple(4)) == len(empty.to_trajectories()) == 0


def test_holes_are_closed_and_positions_counted_anew():
    made = Batch.from_trajectories([one((7, 8, 9), (0, 1, 1)), one((6,), (1,))], PAD)
    made.values["attention_mask"][0, 1] = 0
    assert compute_position_id_with_mask(made.values["attention_mask"]).tolist() == [
        [0, 0, 1],
        [0, 0, 0],
    ]
    closed = padding_data(made, pad_token_id=4)
    assert closed.values["input_ids"].tolist() == [[7, 9], [6, 4]]
    assert closed.values["position_ids"].tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize(("truncation", "left"), [("left", [8, 9]), ("right", [7, 8])])
def test_long_rows_are_cut_at_the_end_that_was_named(truncation, left):
    made = Batch.from_trajectories([one((7, 8, 9)), one((6,), (1,))], PAD)
    cut = padding_data(made, pad_token_id=4, max_length=2, truncation=truncation)
    assert cut.values["input_ids"].tolist() == [left, [6, 4]]
    with pytest.raises(DataError, match="a row of 3 tokens, expected at most 2"):
        padding_data(made, pad_token_id=4, max_length=2)


def test_advantages_of_rows_reach_the_tokens():
    made = Batch.from_trajectories([one(reward=1.0), one((5, 6), (0, 1), reward=-1.0)], PAD)
    made.metadata["advantages"] = [reward * 0.5 for reward in made.metadata["rewards"]]
    assert made.values["advantages"].tolist() == [[0.0, 0.5, 0.5], [0.0, -0.5, 0.0]]
    assert torch.mean(made.metadata["advantages"]) == 0
    made.metadata.update(advantages=torch.tensor([1.0, 2.0]))
    assert made.reorder([1, 0]).values["advantages"].tolist() == [[0.0, 2.0, 0.0], [0.0, 1.0, 1.0]]
    again = Batch({"loss_mask": torch.ones(1, 2)}, {"advantages": [3.0], "rewards": [2.0]})
    assert again.values["advantages"].tolist() == [[3.0, 3.0]]
    assert torch.std(again.metadata["rewards"], correction=0) == 0


def test_the_reward_stands_at_the_last_token_that_was_written():
    made = Batch.from_trajectories([one((1, 2, 3), (1, 1, 0), reward=2.0), one(mask=(0, 0, 0))], 0)
    assert made.values["token_level_scores"].tolist() == [[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]


def test_what_is_missing_or_of_another_size_is_named():
    made = Batch.from_trajectories([one()], PAD)
    with pytest.raises(DataError, match=r"missing values \['advantages'\]; it has .*'loss_mask'"):
        made.check_required()
    made.values["advantages"] = torch.zeros(1, 2)
    with pytest.raises(DataError, match=r"'advantages': got the shape \(1, 2\)"):
        made.check_required()
    with pytest.raises(DataError, match="got 2 rows, expected 1"):
        Batch(made.values, {"group_ids": ["a", "b"]})
    with pytest.raises(DataError, match="of 1 of 2, expected them of all or none"):
        Batch.from_trajectories([one(advantage=1.0), one()], PAD)
    with pytest.raises(DataError, match="expected each of 1 rows once"):
        made.reorder([0, 0])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"loss_mask": [0, 1]}, "got 2 loss_mask for 3 tokens"),
        ({"loss_mask": [0, 2, 1]}, "loss_mask: got 2"),
        ({"loss_mask": [0, 0.5, 1]}, "loss_mask: got 0.5"),
        ({"finish_reason": "eos"}, "finish_reason: got 'eos'"),
        ({"logprobs": [0.0, float("nan"), 0.0]}, "logprobs: got nan"),
        ({"reward": float("inf")}, "reward: got inf"),
        ({"scores": {"a": float("nan")}}, "scores: got nan"),
        ({"advantage": float("nan")}, "advantage: got nan"),
        ({"token_advantages": [1.0]}, "got 1 token_advantages"),
        ({"tokens": [1, -1, 2]}, "the token -1"),
    ],
)
def test_a_trajectory_that_contradicts_itself_is_refused(changed, said):
    with pytest.raises(DataError, match=said):
        dataclasses.replace(one(), **changed)


def test_a_trajectory_can_be_asked_by_name():
    trajectory = one(run_id="r", scores={"exact": 1.0}, metrics={"turns": 2.0})
    assert (trajectory.get("run_id", "default"), trajectory.get("turns")) == ("r", 2.0)
    assert (trajectory.get("nothing", 7), trajectory.get("advantage", 0.0)) == (7, 0.0)
    assert (trajectory.get("exact"), trajectory.num_prompt, trajectory.num_written) == (1.0, 1, 2)


@given(batch=st.lists(trajectories(), max_size=3), reward=st.floats(allow_nan=False).filter(
    lambda x: abs(x) != float("inf")
))  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_trajectories_are_saved_to_the_last_bit(tmp_path_factory, batch, reward):
    path = tmp_path_factory.mktemp("saved") / "folder" / "trajectories.jsonl"
    for trajectory in batch:
        trajectory.reward = reward
    save_trajectories(batch, path)
    assert [repr(one) for one in load_trajectories(path)] == [repr(one) for one in batch]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x1c", "\x0b", "\x0c"])
def test_lines_end_only_at_line_feeds(tmp_path, end):
    path = tmp_path / "trajectories.jsonl"
    saved = [one(run_id=f"a{end}b"), one(run_id="c")]
    save_trajectories(saved, path)
    if ord(end) > 0x20:  # others must be escaped in JSON
        text = path.read_text(encoding="utf-8").replace(json.dumps(end)[1:-1], end)
        path.write_text(text, encoding="utf-8")
    assert plain(load_trajectories(path)) == plain(saved)


def test_a_file_that_holds_something_else_is_named(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    with pytest.raises(DataError, match="no such file"):
        load_trajectories(path)
    path.write_text('{"tokens": [1]}\n')
    with pytest.raises(DataError, match=r"line 1: .* missing \['logprobs', 'loss_mask'\]"):
        load_trajectories(path)
    broken = one()
    broken.reward = float("nan")
    with pytest.raises(DataError, match="reward: got nan"):
        save_trajectories([broken], path)


def test_an_attempt_of_an_earlier_version_keeps_its_name():
    data = one(group_id="0/task").to_dict()
    del data["attempt_id"]
    found = Trajectory.from_dict({**data, "run_id": "0/task/3"})
    assert (found.run_id, found.attempt_id) == ("0/task", "0/task/3")
