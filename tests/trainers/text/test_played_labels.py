"""Every way of sampling stores the label of what was said in its episode."""

from __future__ import annotations

import itertools
import threading

import pytest

from ratchet.rollouts.outcomes import final_decisions, rollout_statistics
from ratchet.rollouts.transcript_content import report_transcripts

SAMPLING = {
    "pure_text_ei": {},
    "pure_text_malt": {},
    "pure_text_grpo": {"pure_text_grpo__redraws": {"prover": 1, "verifier": 1}},
}


def label_of(texts):
    return sum(len(text.split()) for text in texts) % 2


@pytest.mark.parametrize("trainer", SAMPLING)
def test_each_rollout_has_the_label_of_what_was_said(trainer, tiny_text, tmp_path, monkeypatch):
    def label(self, position):
        return label_of(message.text for message in position.messages)

    monkeypatch.setattr(tiny_text.TinyTextScenario, "label", label)
    trainer = tiny_text.trainer(tiny_text.parameters(trainer=trainer, **SAMPLING[trainer]))
    trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "calls.jsonl")
    y = rollouts["y"]
    said = [[text for text in row.flat if text] for row in rollouts["message_history"]]
    assert y.tolist() == [label_of(texts) for texts in said]
    of_data = rollouts["datapoint_id"] % 2
    assert (y != of_data).any()
    names = trainer.agent_names
    decision = final_decisions(rollouts, names.index("verifier"))
    reward = rollouts["agents", "reward"][:, :, names.index("verifier")].sum(1)
    assert (reward == (2 * (decision == y) - 1)).all()
    stats = rollout_statistics(rollouts, names, "verifier")
    assert stats["accuracy"] == (decision == y).mean()
    transcripts = report_transcripts(
        rollouts, names, trainer.protocol_handler.message_channel_names, label_texts=("no", "yes")
    )
    assert [each["truth"] for each in transcripts] == [("no", "yes")[label] for label in y]
    assert [each["correct"] for each in transcripts] == (decision == y).tolist()


def test_other_episodes_continue_while_a_label_is_computed(tiny_text, tmp_path, monkeypatch):
    calls, second = itertools.count(1), threading.Event()

    def label(self, position):
        if next(calls) == 2:
            second.set()
        assert second.wait(20), "the first call waits for another episode's"
        return 1

    monkeypatch.setattr(tiny_text.TinyTextScenario, "label", label)
    trainer = tiny_text.trainer(tiny_text.parameters(trainer="pure_text_ei"))
    trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "calls.jsonl")
    assert rollouts["y"].all()
