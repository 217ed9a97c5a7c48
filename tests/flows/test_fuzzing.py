"""Random changes to the shipped experiment files: `ratchet plan` accepts or refuses each.

Every case must end in a resolved experiment with its stage keys, or in a RatchetError with a short
message. A case is determined by its number, which a failure shows with the changes.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.runs.preflight import check_experiment
from flows.runs.resolve import resolve_file
from ratchet.errors import RatchetError

FOLDER = Path(__file__).parents[2] / "experiments"
LONGEST_MESSAGE = 2000
MOST_SECONDS = 60.0
MILD = ("1", "2", "0.5", "null", "true", "false", "[]", "{}", "none", "'1'", "100", "[1, 2]")
VALUES = (
    *("null", "true", "''", "0", "-1", "1", "0.5", "-1e-3", "1e400", ".nan", "-.inf", "1e9"),
    *("1000000000", "9" * 30, "9" * 5000, "0x" + "f" * 5000, "1:30:00", "0o17", "1_000"),
    *("[]", "{}", "[1]", "{a: 1}", "[[[]]]", "[null]", "{'': 1}", "{1: 2}", "{null: 1}"),
    *("2020-13-99", "2020-01-01", "2020-01-01 25:61:00", "=", "<<", "~", "..", "/", "\0"),
    *("&a [*a]", "*unknown", "!!python/object:os.system x", "!!binary x", "!!int ''", "!!float x"),
    *("!!bool perhaps", "!!timestamp x", "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1]"),
    *("? [1, 2]\n: 3", "? {a: b}\n: c", "{[1]: 2}", "${seed}", "${nowhere}", "${", "${a:b}"),
    *("x" * 12_000, "é\u200b\U0001f600", "'\\uD800'", '"\\0"', "[" * 1200, "{a: " * 300),
    *("[" + ", ".join(["1"] * 3000) + "]", "{" + ", ".join(f"k{i}: 1" for i in range(500)) + "}"),
    *("missing.py:Class", "../x.py:y:z", "main", "_default", "none", "torchrl_ppo", "ppo"),
    *("{kind: constant}", "{kind: nothing}", "{_type: Nothing}", "{module_path: 1}", "- a\n- b"),
)
SNIPPETS = (
    *("\n- x\n", "\n? [a]\n: b\n", "\nseed: 1\nseed: 2\n", "\n<<: {seed: 3}\n", "\n<<: 7\n"),
    *("\narms: {main: {}}\n", "\narms: {a: {arms: {}}}\n", "\narms: [1]\n", "\narms: {a: 1}\n"),
    *("\nsettings: 7\n", "\nsweep: {x: 1}\n", "\ndefaults: [nothing]\n", "\ndefaults: [{}]\n"),
    *("\ndefaults: [[]]\n", "\nphases: [{name: a}]\n", "\nphases: {a: 1}\n", "\t", "\0", "\x85"),
    *("\n---\n", "\n...\n", "%YAML 9.9\n---\n", ": ", "#", "'", '"', "{", "]", "&a ", "*a ", "!x "),
    *("\na: &a {b: *a}\n", "\nx: !!python/name:os.system\n", "\nparameters_version: 99\n"),
    *("\nbase_run: {base_run_type: parameters, run_id: 7}\n", "\ncallbacks: [1]\n", "\r", "\ufeff"),
    *("\ntorchrl: 7\n", "\nagents: [1]\n", "\nagents: {_default: 1}\n", "\nagents: {a.b.c: 1}\n"),
)
BYTES = (b"\xe9", b"\xff\xfe", b"\x00", b"\x80", b"\xed\xa0\x80", b"\xc3", b"\x1b", b"\xf0\x9f")
PATHS = (
    *(
        "seed",
        "scenario",
        "trainer",
        "dataset",
        "interaction_protocol",
        "agents",
        "agents._default",
    ),
    *("agents.prover", "agents.verifier.d_gnn", "rl", "rl.num_iterations", "rl.lr", "phases"),
    *("settings", "settings.base_dir", "settings.runs", "settings.home", "settings.run_id"),
    *("settings.store", "settings.iterations_per_task", "settings.tags", "settings.device"),
    *("settings.budget", "settings.prices", "arms", "arms.x", "arms.x.rl.lr", "arms.main", "sweep"),
    *("sweep.grid", "torchrl", "torchrl.config", "torchrl.choices", "torchrl.transforms"),
    *("trainer.module_path", "trainer.class_name", "trainer.total_frames", "loss", "optimizer"),
    *("optimizer@optimizer", "+hook", "++rl.lr", "~seed", "~rl.lr", "~nothing", "+", "~", "@", ""),
    *("base_run", "base_run.run_id", "base_run.base_run_type", "callbacks", "parameters_version"),
    *(
        "language",
        "language.train_service",
        "evaluation",
        "evaluation.suites",
        "gymnasium",
        "a.b.c",
    ),
    *(
        "nip_protocol",
        "protocol_common",
        "message_size",
        "imitation",
        "imitation.source",
        "x" * 9000,
    ),
)


@dataclass
class Case:
    """A changed copy of an experiment file, and overrides."""

    source: str
    content: bytes
    overrides: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


def make_case(number: int, seed: int = 0) -> Case:
    """Return a case, the same for the same number and seed."""
    rng = random.Random(f"{seed}-{number}")
    source = rng.choice(sorted(FOLDER.glob("*.yaml")))
    case = Case(source.name, source.read_bytes())
    tree = yaml.safe_load(source.read_text(encoding="utf-8"))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice((change_bytes, change_text, change_tree, change_tree, override, override))(
            case, tree, rng
        )
    return case


def change_bytes(case: Case, tree: dict[str, Any], rng: random.Random) -> None:
    """Insert bytes, or truncate the file."""
    place, new = rng.randrange(len(case.content) + 1), rng.choice(BYTES)
    is_cut = rng.random() < 0.3
    case.content = case.content[:place] + (b"" if is_cut else new + case.content[place:])
    case.changes.append(f"bytes at {place}: {'cut off' if is_cut else new!r}")


def change_text(case: Case, tree: dict[str, Any], rng: random.Random) -> None:
    """Insert a YAML snippet."""
    new = rng.choice(SNIPPETS)
    starts = [0, len(case.content), *(n for n, byte in enumerate(case.content) if byte in b"\n:,")]
    place = rng.choice(starts)
    case.content = case.content[:place] + new.encode() + case.content[place:]
    case.changes.append(f"text at {place}: {new!r}")


def change_tree(case: Case, tree: dict[str, Any], rng: random.Random) -> None:
    """Replace, rename, remove, nest or copy a value of the file."""
    changed = copy.deepcopy(tree)
    parent, name = rng.choice(list(_places(changed)))
    kind = rng.choice(("replace", "replace", "remove", "rename", "nest", "copy"))
    if kind == "replace":
        parent[name] = "@VALUE@"
    elif kind == "nest":
        parent[name] = {str(name): parent[name]}
    elif kind == "copy":
        other, key = rng.choice(list(_places(tree)))
        parent[name] = copy.deepcopy(other[key])
    else:
        value = parent.pop(name)
        if kind == "rename" and isinstance(parent, dict):
            parent[rng.choice((f"{name}x", 7, None, True, "", "a.b", ".", "x" * 3000))] = value
    value = any_value(rng)
    case.content = yaml.safe_dump(changed).replace("'@VALUE@'", value).encode("utf-8", "replace")
    case.changes.append(f"{kind} {str(name)[:50]!r} {value[:50]!r}")


def any_value(rng: random.Random) -> str:
    """Return a value as text: an unusual one, or one that many parameters accept."""
    return rng.choice(rng.choice((VALUES, MILD)))


def override(case: Case, tree: dict[str, Any], rng: random.Random) -> None:
    """Add an override of the command line."""
    paths = [*PATHS, *_dotted(tree)]
    path = rng.choice(rng.choice((PATHS, paths)))
    case.overrides.append(rng.choice((f"{path}={any_value(rng)}",) * 9 + (path,)))
    case.changes.append(f"override {case.overrides[-1][:80]!r}")


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    names = tree if isinstance(tree, dict) else range(len(tree))
    for name in names:
        yield tree, name
        if isinstance(tree[name], dict | list):
            yield from _places(tree[name])


def _dotted(tree: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield f"{above}{name}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{above}{name}.")


def run_case(case: Case, folder: Path) -> str | None:
    """Plan a case up to the first keys, as `ratchet plan` does; return the problem, if any."""
    file = folder / "case.yaml"
    file.write_bytes(case.content)
    start = time.monotonic()
    try:
        experiment = resolve_file(str(file), case.overrides).with_settings(device="cpu")
        check_experiment(experiment)
        for keys in experiment.keys:
            keys.build_scenario()
    except RatchetError as error:
        if len(str(error)) >= LONGEST_MESSAGE:
            return f"a message of {len(str(error)):,} characters: {str(error)[:3000]}"
    except Exception as error:  # noqa: BLE001 -- the failures to find
        return f"{type(error).__name__}: {str(error)[:500]}"
    seconds = time.monotonic() - start
    return f"took {seconds:.0f} s" if seconds > MOST_SECONDS else None


def find_failures(numbers: range, folder: Path) -> dict[int, str]:
    """Run cases; return the problems of those that fail, by number."""
    cases = ((number, make_case(number)) for number in numbers)
    found = ((number, case, run_case(case, folder)) for number, case in cases)
    return {
        number: f"{case.source}: {'; '.join(case.changes)}: {problem}"
        for number, case, problem in found
        if problem is not None
    }


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_changed_experiment_files_are_planned_or_refused(tmp_path: Path) -> None:
    assert not find_failures(range(100), tmp_path)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_many_changed_experiment_files_are_planned_or_refused(tmp_path: Path) -> None:
    assert not find_failures(range(100, 10_000), tmp_path)
