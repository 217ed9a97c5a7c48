"""Experiment files that are damaged, hostile or wrong end in short errors, and in no traceback."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.runs.preflight import find_problems
from flows.runs.resolving import resolve_file
from ratchet.errors import ParameterError, RatchetError
from ratchet.experiment_files.loading import load_experiment

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))
GOOD = "scenario: graph_isomorphism\ntrainer: vanilla_ppo\ndataset: generated\n"
LONGEST_MESSAGE = 4000
VALUES = (
    *("7", "-1", "1e400", ".nan", "null", "[]", "{}", "[1]", "{a: 1}", "true", "2020-13-99"),
    *("1:30", "!!binary aGk=", "!!set {a}", "'" + "y" * 12_000 + "'", "{kind: x}", "{name: 3}"),
    *("10000000000000000000000", "*a", "&a [1]", "{null: 1}", "{1: 2}", "mine.py:X", "/dev/null"),
)
TOPS = (
    *("rl", "agents", "agents._default", "agents.prover", "settings", "arms", "arms.x", "sweep"),
    *("torchrl", "phases", "callbacks", "imitation", "language", "trainer", "dataset", "defaults"),
    *("scenario", "seed", "base_run", "gymnasium", "settings.base_dir", "settings.store", "model"),
    *("loss", "optimizer", "models", "interaction_protocol", "text_rl", "rl.num_iterations"),
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (GOOD.encode() + b"# caf\xe9\n", r"bad\.yaml:4: got the byte 0xe9, expected UTF-8"),
        (GOOD + "seed: 2020-13-99\n", "seed: got '2020-13-99'"),
        (GOOD + "? [a, b]\n: 1\n", "bad YAML: the key .* is no text"),
        (GOOD + "rl: &a {lr: *a}\n", r"bad\.yaml:4: an alias contains itself"),
        (GOOD + "rl: " + "[" * 1200 + "]" * 1200, "nested too deeply, expected at most 100"),
        (GOOD + "settings: {base_dir: [1]}\n", r"settings\.base_dir: got \[1\], expected the path"),
        (
            "trainer: torchrl_ppo\nscenario: gymnasium\ntorchrl: 7\n",
            "torchrl: got 7, expected a map",
        ),
        (GOOD + "seed: '" + "y" * 12_000 + "'\n", "11,[0-9]+ characters"),
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
    with pytest.raises(ParameterError, match="values with its aliases expanded, expected at most"):
        load_experiment(tmp_path / "bomb.yaml")


def test_more_stages_than_anyone_waits_for_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "long.yaml").write_text(GOOD)
    places = [f"settings.{name}={tmp_path / name}" for name in ("home", "runs")]
    experiment = resolve_file(tmp_path / "long.yaml", ["rl.num_iterations=1000000000", *places])
    (problem,) = find_problems(experiment)
    assert "got 1,000,000,000 with settings.iterations_per_task=10" in str(problem)


def _paths(data: dict[Any, Any], above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = []
    for name, value in data.items():
        found.append((*above, name))
        found += _paths(value, (*above, name)) if isinstance(value, dict) else []
    return found


def _mutated(rng: random.Random) -> tuple[str, list[str]]:
    """Return a shipped file's text and overrides, one of them wrong in some way."""
    text = rng.choice(EXPERIMENTS).read_text()
    paths = _paths(yaml.safe_load(text))
    match rng.randrange(3):
        case 0:
            chosen = rng.choices(paths, k=rng.randint(1, 3))
            return text, [f"{'.'.join(map(str, p))}={rng.choice(VALUES)}" for p in chosen]
        case 1:
            return text, [f"{rng.choice(TOPS)}={rng.choice(VALUES)}"]
        case _:
            lines = text.splitlines()
            for _ in range(rng.randint(1, 4)):
                place = rng.randrange(len(lines))
                line, marks = lines[place], "[]{}:-&*!|>'\"%@`#,?\t\x00é"
                cut = rng.randint(0, len(line))
                lines[place] = rng.choice(
                    [
                        *("", f"{line}\n{line}", " " * rng.randint(0, 6) + line.strip()),
                        line.replace(":", rng.choice(["", "::", ": - ", ": &a ", ": *a "]), 1),
                        line[:cut] + rng.choice(marks) + line[cut + 1 :],
                    ]
                )
            return "\n".join(lines), []


def _fuzz(cases: range, folder: Path) -> None:
    places = [f"settings.{name}={folder / name}" for name in ("home", "runs")]
    for case in cases:
        text, overrides = _mutated(random.Random(case))
        file = folder / "fuzzed.yaml"
        file.write_text(text)
        message = ""
        try:
            resolve_file(str(file), [*overrides, *places])
        except RatchetError as error:
            message = str(error)
        except Exception as error:
            raise AssertionError(f"case {case}: {overrides} in\n{text}") from error
        assert len(message) < LONGEST_MESSAGE, f"case {case}"


def test_mutated_experiments_load_or_are_refused(tmp_path: Path) -> None:
    _fuzz(range(150), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_mutated_experiments_load_or_are_refused(tmp_path: Path) -> None:
    _fuzz(range(1000, 4000), tmp_path)
