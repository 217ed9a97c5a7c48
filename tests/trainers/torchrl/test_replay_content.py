"""A replay buffer is stored as its writes: each once, and restored to its index."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

from ratchet.errors import ParameterError, StateError
from trainers.torchrl.replay import (
    ReplayContent,
    check_buffer,
    load_replay,
    load_sampler,
    take_replay,
    take_sampler,
)
from trainers.torchrl.state import Stored, TorchRlState

CAPACITY = 10


def new_buffer(sampler=None, storage=LazyTensorStorage):
    return TensorDictReplayBuffer(
        storage=storage(CAPACITY), sampler=sampler or RandomSampler(), batch_size=4
    )


def frames(start, stop):
    steps = torch.arange(start, stop)
    content = {"x": steps.float().unsqueeze(-1), "next": {"done": steps % 3 == 0}}
    return TensorDict(content, batch_size=[stop - start])


def same(one, other):
    assert (one[:] == other[:]).all()
    assert (one.write_count, one.writer._cursor) == (other.write_count, other.writer._cursor)


@pytest.mark.parametrize("writes", [0, 1, 7, 10, 13, 34])
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_what_is_put_back_is_what_was_taken_and_grows_on_alike(writes, storage):
    buffer, other = new_buffer(storage=storage), new_buffer(storage=storage)
    other.extend(frames(90, 95))  # to be forgotten
    for start in range(0, writes, 5):
        buffer.extend(frames(start, min(start + 5, writes)))
    load_replay(other, take_replay(buffer))
    assert len(buffer) == len(other) == min(writes, CAPACITY)
    if writes:
        same(buffer, other)
    for each in (buffer, other):
        each.extend(frames(50, 53))
    same(buffer, other)


def save_chain(folder, cuts):
    """Write a buffer as stages do: each with the frames that came since the stage before."""
    buffer, stored = new_buffer(), {}
    for number, cut in enumerate(cuts):
        start = buffer.write_count
        for at in range(start, cut, 3):
            buffer.extend(frames(at, min(at + 3, cut)))
        since = stored["replay_buffer"].write_count if stored else 0
        content = take_replay(buffer, since)
        state = TorchRlState(iteration=number, buffers={"replay_buffer": content})
        state.save(folder / f"stage{number}", stored)
        stored = {"replay_buffer": Stored(f"stage{number}", content.write_count)}
    return buffer


def sizes(folder):
    return [
        path.stat().st_size if (path := stage / "replay_buffer.frames.safetensors").exists() else 0
        for stage in sorted(folder.iterdir())
    ]


@pytest.mark.parametrize("cuts", [(4, 7, 9), (4, 7, 12, 15), (3, 3, 30), (0, 2, 2, 11, 13), (25,)])
def test_stages_hold_the_new_frames_only_and_together_all_that_are_left(tmp_path, cuts):
    buffer = save_chain(tmp_path, cuts)
    found = TorchRlState.load(tmp_path / f"stage{len(cuts) - 1}", lambda key: tmp_path / key)
    other = new_buffer()
    load_replay(other, found.buffers["replay_buffer"])
    same(buffer, other)
    whole = TorchRlState(iteration=len(cuts) - 1, buffers={"replay_buffer": take_replay(buffer)})
    assert found == whole


def test_a_stage_grows_with_what_is_new_in_it_not_with_the_buffer(tmp_path):
    save_chain(tmp_path, (9, 10, 11))
    first, second, third = sizes(tmp_path)
    assert second == third < first / 1.5


def test_a_stage_before_that_was_cut_otherwise_serves_as_well(tmp_path):
    """A damaged stage may be recomputed from another state, with different new frames."""
    buffer = save_chain(tmp_path / "one", (3, 6, 9))
    save_chain(tmp_path / "other", (2, 5, 6, 9))
    (tmp_path / "other" / "stage2").rename(tmp_path / "other" / "again")
    places = {
        "stage1": tmp_path / "other" / "again",  # the state after 6 writes, in another cut
        "stage0": tmp_path / "other" / "stage1",
    }
    renamed = tmp_path / "other" / "again" / "state.json"
    text = renamed.read_text()
    assert '"before": "stage1"' in text
    renamed.write_text(text.replace('"before": "stage1"', '"before": "stage0"'))
    first = tmp_path / "other" / "stage1" / "state.json"
    first.write_text(first.read_text().replace('"before": "stage0"', '"before": "start"'))
    places["start"] = tmp_path / "other" / "stage0"
    found = TorchRlState.load(tmp_path / "one" / "stage2", places.__getitem__)
    other = new_buffer()
    load_replay(other, found.buffers["replay_buffer"])
    same(buffer, other)


def test_a_state_that_refers_elsewhere_is_not_read_without_a_store(tmp_path):
    save_chain(tmp_path, (4, 6))
    with pytest.raises(StateError, match="refers to the stage stage0"):
        TorchRlState.load(tmp_path / "stage1")


def test_a_content_with_missing_writes_is_refused():
    buffer = new_buffer()
    buffer.extend(frames(0, 8))
    content = take_replay(buffer, since=5)
    with pytest.raises(StateError, match="writes from 5 on, expected those from 0"):
        load_replay(new_buffer(), content)
    with pytest.raises(StateError, match="12 frames, expected at most 10"):
        load_replay(new_buffer(), ReplayContent(12, 12, [{"x": torch.zeros(12, 1)}]))


@pytest.mark.parametrize("kind", [SamplerWithoutReplacement, RandomSampler])
def test_samplers_go_on_where_they_were(kind):
    buffer, other = new_buffer(kind()), new_buffer(kind())
    buffer.extend(frames(0, 8))
    for _ in range(3):
        buffer.sample()
    load_replay(other, take_replay(buffer))
    load_sampler(other, take_sampler(buffer))
    for _ in range(4):
        drawn = []
        for each in (buffer, other):
            torch.manual_seed(5)
            drawn.append(each.sample()["x"])
        assert drawn[0].equal(drawn[1])


def test_a_buffer_of_another_kind_is_refused_with_what_to_take():
    with pytest.raises(ParameterError, match=r"ListStorage.*lazy_memmap or lazy_tensor"):
        check_buffer(TensorDictReplayBuffer(storage=ListStorage(5), batch_size=2))
