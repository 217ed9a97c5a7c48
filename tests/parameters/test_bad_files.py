"""Damaged, hostile or invalid experiment files cause short errors without tracebacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.runs.preflight import find_problems
from flows.runs.resolve import resolve_file
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment

GOOD = "scenario: graph_isomorphism\ntrainer: vanilla_ppo\ndataset: generated\n"
LONGEST_MESSAGE = 4000


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (GOOD.encode() + b"# caf\xe9\n", r"bad\.yaml:4: not UTF-8: got byte 0xe9"),
        (GOOD + "seed: 2020-13-99\n", "invalid timestamp '2020-13-99'"),
        (GOOD + "? [a, b]\n: 1\n", "the key .* is a list, expected text"),
        (GOOD + "rl: &a {lr: *a}\n", r"bad\.yaml:4:13: bad YAML: an alias contains itself"),
        (GOOD + "rl: " + "[" * 1200 + "]" * 1200, "nested deeper than 100 levels"),
        (GOOD + "settings: {base_dir: [1]}\n", r"settings\.base_dir: got \[1\], expected a folder"),
        (
            "trainer: torchrl_ppo\nscenario: gymnasium\ntorchrl: 7\n",
            "torchrl: got 7, expected a map",
        ),
        (
            "scenario: code_validation\ntrainer: pure_text_ei\ndataset: generated\n"
            "agents: {_default: {chat_template_kwargs: {x: [.nan]}}}\n",
            r"agents\._default\.chat_template_kwargs\.x\.0: got nan, expected a finite number",
        ),
        (
            "scenario: language_task\ntrainer: grpo\ndataset: arithmetic\n"
            "language: {algorithm: {x: .inf}}\n",
            r"language\.algorithm\.x: got inf, expected a finite number",
        ),
        (GOOD + "seed: '" + "y" * 12_000 + "'\n", "12,[0-9]+ characters"),
    ],
)
def test_a_bad_file_is_refused_shortly(tmp_path: Path, content: str | bytes, expected: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ParameterError, match=expected) as caught:
        load_experiment(file)
    assert len(str(caught.value)) < LONGEST_MESSAGE


def test_aliases_that_expand_without_end_are_refused_at_once(tmp_path: Path) -> None:
    lines = [
        "a0: &a0 [1, 1]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)),
    ]
    (tmp_path / "bomb.yaml").write_text(GOOD + "\n".join(lines))
    with pytest.raises(ParameterError, match="values, aliases expanded, expected at most"):
        load_experiment(tmp_path / "bomb.yaml")


def test_more_stages_than_anyone_waits_for_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "long.yaml").write_text(GOOD)
    places = [f"settings.{name}={tmp_path / name}" for name in ("home", "runs")]
    experiment = resolve_file(tmp_path / "long.yaml", ["rl.num_iterations=10000000", *places])
    (problem,) = find_problems(experiment)
    assert "got 10,000,000 with settings.iterations_per_task=10" in str(problem)
