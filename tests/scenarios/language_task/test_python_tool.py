"""A model's programs run in the sandbox, and the model reads their output."""

from ratchet.scenarios.language_task.environments.base import ENVIRONMENTS
from ratchet.scenarios.language_task.evaluators import ExactMatch
from ratchet.scenarios.language_task.rollout_generation import ModelPlayer, Rules, Sampling, play
from ratchet.scenarios.language_task.task import Task


def test_programs_are_run_and_a_reply_without_one_ends_the_episode(tokenizer, engine_saying):
    replies = [
        "<python>print(6*7)</python>",
        "<python>1/0</python>",
        "<python>print(open('/etc/passwd','w'))</python>",
        "42",
    ]
    engine = engine_saying(lambda prompt, request: replies[prompt.count("<output>")])
    tool = ENVIRONMENTS.find("python_tool")()
    found = play(
        [Task("t", "6*7=", "42")],
        players={"agent": ModelPlayer(engine, tokenizer, Sampling(80))},
        rules=Rules(tool, ExactMatch()),
        group_size=1,
        iteration=0,
        seed=1,
    )
    (trajectory,) = found.trajectories
    text = tokenizer.decode(trajectory.tokens)
    assert f"6*7={replies[0]}<output>42</output>{replies[1]}<output>error: " in text
    assert trajectory.reward == 1.0
    assert trajectory.finish_reason == "environment"
    assert trajectory.metrics["tool_calls"] == 3
    assert trajectory.metrics["tool_failures"] == 2
    written = [t for t, mask in zip(trajectory.tokens, trajectory.loss_mask, strict=True) if mask]
    assert "output" not in tokenizer.decode(written)
