"""Datasets that are read: their content, and errors of invalid ones."""

from __future__ import annotations

import json
import subprocess
import sys

import datasets as hub_datasets
import pytest

from ratchet.errors import DataError
from ratchet.parameters import HyperParameters
from ratchet.scenarios.code_validation.dataset import build_code_validation_datasets
from ratchet.scenarios.code_validation.loaders import (
    LoadingOptions,
    load_hub_examples,
    load_jsonl_examples,
)

RIGHT = "def f(a):\n    return a + 1"
TESTS = {"entry": "f", "cases": [{"given": [1], "expected": 2}, {"given": [5], "expected": 6}]}
ROWS = [
    {"question": f"Add {i}.", "solution": f"def f(a): return a + {i}", "y": i % 2}
    for i in range(40)
]


def parameters(dataset, dataset_options=None, **section):
    return HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset=dataset,
        dataset_options=dataset_options or {},
        code_validation=section,
    )


@pytest.fixture
def write(tmp_path):
    def write_rows(rows, name="data.jsonl"):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write_rows


@pytest.fixture(scope="module")
def buggy_apps(tmp_path_factory):
    """A small file in the layout of buggy-APPS: two splits, several solutions to a problem."""
    folder = tmp_path_factory.mktemp("buggy_apps")
    for split, count in (("train", 6), ("test", 4)):
        rows = [
            {
                "problem_id": i,
                "question": f"{split} problem {i}: add {i} to the number.",
                "difficulty": ("introductory", "interview")[i % 2],
                "flags": "no_bug_found" if i == 5 else "",
                "solutions": [
                    {"solution": f"print(int(input()) + {i})"},
                    {"solution": f"n = int(input())\nprint(n + {i})"},
                ],
                "buggy_solutions": [
                    {"solution": f"print(int(input()) - {i})", "bugs": "sign"},
                    {"solution": f"n = int(input())\nprint({i})", "bugs": "n is lost"},
                ],
            }
            for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_byte_order_mark_is_ignored(write):
    path = write(ROWS)
    examples = load_jsonl_examples(path, LoadingOptions())
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert load_jsonl_examples(path, LoadingOptions()) == examples


def test_a_file_is_split_by_question(write):
    rows = [row for row in ROWS for _ in range(2)]
    made = build_code_validation_datasets(parameters(f"jsonl:{write(rows)}"))
    train, test = (set(made[side]["question"].tolist()) for side in ("train", "test"))
    assert set(made["train"]["source"].tolist()) == {"jsonl:data.jsonl"}
    assert not train & test
    assert train
    assert test
    for side in ("train", "test"):
        assert made[side]["y"].mean() == 0.5
        for question, y in zip(made[side]["question"], made[side]["y"], strict=True):
            assert int(question.split()[1].rstrip(".")) % 2 == y


def test_a_folder_has_its_own_split(write):
    path = write(ROWS[:8], "train.jsonl")
    write([{**ROWS[9], "level": 3}, ROWS[10]], "test.jsonl")
    made = build_code_validation_datasets(parameters(f"jsonl:{path.parent}"))
    assert len(made["train"]) == 8
    assert sorted(made["test"]["level"].tolist()) == [-1, 3]
    assert set(made["test"]["source"].tolist()) == {"jsonl"}


def test_balance_and_size_can_be_chosen(write):
    path = write([*ROWS[:9], *({**ROWS[0], "question": f"q{i}"} for i in range(9))], "train.jsonl")
    write(ROWS[20:], "test.jsonl")
    name = f"jsonl:{path.parent}"
    assert len(build_code_validation_datasets(parameters(name))["train"]) == 8
    unbalanced = parameters(name, {"make_balanced": False, "max_train_size": 17}, max_test_size=3)
    made = build_code_validation_datasets(unbalanced)
    assert (len(made["train"]), len(made["test"])) == (17, 3)


def test_tests_decide_where_there_are_any(write):
    rows = [
        {"question": "q", "solution": RIGHT, "tests": TESTS},
        {"question": "q", "solution": RIGHT.replace("+", "-"), "tests": TESTS},
        {"question": "q", "solution": RIGHT, "tests": TESTS, "y": 1},
    ]
    found = load_jsonl_examples(write(rows), LoadingOptions())["all"]
    assert [e.y for e in found] == [1, 0, 1]


def test_a_label_that_contradicts_its_tests_is_an_error(write):
    path = write(["", json.dumps({"question": "q", "solution": RIGHT, "tests": TESTS, "y": 0})])
    with pytest.raises(DataError, match=r"data.jsonl:2: y: got 0, but .* 'passed'"):
        load_jsonl_examples(path, LoadingOptions())


GOOD = {"question": "q", "solution": "s", "y": 1}
BAD = {
    "no JSON": ("{", r":2: no JSON: .* Expected one object on a line"),
    "no object": ("[1]", r":2: got list, expected a JSON object"),
    "no question": ({"solution": "s", "y": 1}, r":2: question: got nothing, expected a text"),
    "empty question": ({**GOOD, "question": " "}, r":2: question: got ' '"),
    "number for a text": ({**GOOD, "solution": 3}, r":2: solution: got 3, expected a text"),
    "no label": ({"question": "q", "solution": "s"}, r":2: y: missing, expected 0 or 1, or tests"),
    "label 2": ({**GOOD, "y": 2}, r":2: y: got 2, expected 0 \(buggy\) or 1 \(right\)"),
    "label true": ({**GOOD, "y": True}, r":2: y: got True"),
    "level": ({**GOOD, "level": "hard"}, r":2: level: got 'hard'"),
    "tests": ({**GOOD, "tests": [1]}, r":2: tests: got list, expected an object"),
    "mode": ({**GOOD, "tests": {"mode": "x"}}, r":2: tests.mode: got 'x', expected one of call"),
    "entry": ({**GOOD, "tests": {"cases": []}}, r":2: tests: entry: got nothing"),
    "cases": ({**GOOD, "tests": {"entry": "f", "cases": []}}, r":2: tests.cases: got list"),
    "case": ({**GOOD, "tests": {"entry": "f", "cases": [{"given": [1]}]}}, r"cases\[0\]: expected"),
    "given": (
        {**GOOD, "tests": {"entry": "f", "cases": [{"given": 1, "expected": 1}]}},
        r"cases\[0\].given: got int, expected list in the mode call",
    ),
    "solutions": ({"question": "q", "solutions": "s"}, r":2: solutions: got 's', no JSON"),
    "solution in a list": (
        {"question": "q", "solutions": [{"solution": "s"}], "buggy_solutions": [{"code": "x"}]},
        r":2: buggy_solutions\[0\]: solution: got nothing",
    ),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes_are_named_with_line_and_field(write, mistake):
    row, message = BAD[mistake]
    with pytest.raises(DataError, match=message):
        load_jsonl_examples(write([GOOD, row]), LoadingOptions())


def test_missing_files_and_empty_sides_say_what_to_do(tmp_path, write):
    with pytest.raises(DataError, match=r"train.jsonl and test.jsonl"):
        build_code_validation_datasets(parameters(f"jsonl:{tmp_path / 'nothing.jsonl'}"))
    only_right = write([GOOD, {**GOOD, "question": "r"}])
    with pytest.raises(DataError, match="make_balanced=false"):
        build_code_validation_datasets(parameters(f"jsonl:{only_right}"))


def test_the_layout_of_buggy_apps_from_local_files(buggy_apps):
    made = build_code_validation_datasets(parameters(f"hub:{buggy_apps}"))
    train = made["train"]
    assert len(train) == 20  # five problems that aren't flagged, two right and two buggy each
    assert train["y"].mean() == 0.5
    assert set(train["level"].tolist()) == {1, 2}
    for solution, y in zip(train["solution"].tolist(), train["y"].tolist(), strict=True):
        assert ("+ " in solution) == bool(y)
    assert all(q.startswith("test") for q in made["test"]["question"].tolist())


def test_difficulties_and_flags_choose_problems(buggy_apps):
    name = f"hub:{buggy_apps}"
    chosen = build_code_validation_datasets(parameters(name, difficulties=("interview",)))
    assert set(chosen["train"]["level"].tolist()) == {2}
    assert len(chosen["train"]) == 8
    flagged = build_code_validation_datasets(parameters(name, exclude_flagged=False))
    assert len(flagged["train"]) == 24


def test_a_saved_dataset_is_read_too(buggy_apps, tmp_path):
    files = {split: str(buggy_apps / f"{split}.jsonl") for split in ("train", "test")}
    loaded = hub_datasets.load_dataset("json", data_files=files, cache_dir=str(tmp_path / "cache"))
    loaded.save_to_disk(str(tmp_path / "saved"))
    saved = load_hub_examples(str(tmp_path / "saved"), LoadingOptions())
    assert saved == load_hub_examples(str(buggy_apps), LoadingOptions())


def test_what_can_not_be_read_says_how_to_get_it(monkeypatch):
    hint = r"owner/nothing: cannot be read.*local copy.*dataset=hub:FOLDER"
    with pytest.raises(DataError, match=hint):
        load_hub_examples("owner/nothing", LoadingOptions())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'ratchet-experiments\[hub\]'"):
        load_hub_examples("owner/nothing", LoadingOptions())


def test_generated_data_need_no_datasets_package():
    code = (
        "import sys\n"
        "import ratchet.scenarios.code_validation.dataset\n"
        "assert not {'datasets', 'torch', 'transformers', 'openai'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


ECHO = {"inputs": ["4 5\n", "1\n2\n"], "outputs": ["9\n", "3.0000001\n"]}
SUMS = [
    "import sys\nprint(sum(map(float, sys.stdin.read().split())))",
    "print(1)",
    "import sys\nnumbers = [int(n) for n in sys.stdin.read().split()]\nprint(sum(numbers))",
]
CALLED = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}
METHOD = "class Solution:\n    def add(self, a: int, b: int) -> List[int]:\n        return a + b\n"


def apps_row(number, solutions, tests):
    """Return a row in the layout of APPS, with JSON texts."""
    return {
        "problem_id": number,
        "question": f"Problem {number}.",
        "solutions": json.dumps(solutions) if solutions else "",
        "input_output": tests if isinstance(tests, str) else json.dumps(tests),
        "difficulty": "interview",
        "url": "",
        "starter_code": "",
    }


def load_apps(write, *rows, **options):
    path = write([apps_row(i, *row) for i, row in enumerate(rows)])
    found = load_jsonl_examples(path, LoadingOptions(**options))["all"]
    return [(example.solution, example.y) for example in found]


def test_rows_of_apps_are_run_on_their_own_tests(write, caplog):
    rows = [(SUMS, ECHO), ([], ECHO), ([METHOD, "def add(a, b): return a * b"], CALLED)]
    expected = [(SUMS[0], 1), (SUMS[2], 1), (METHOD, 1)]
    assert load_apps(write, *rows) == expected
    assert "2 of 5 programs were left out" in caplog.text
    assert len(load_apps(write, *rows, run_own_tests=False)) == 5
    assert load_apps(write, (["print(3)"], "")) == [("print(3)", 1)], "nothing to run it on"


def test_one_of_many_solutions_can_be_chosen(write):
    rows = [(SUMS, ECHO), (["def add(a, b): return a + b"], CALLED)]
    assert load_apps(write, *rows, solution_number=2) == [(SUMS[2], 1)]
    assert [y for _, y in load_apps(write, *rows, solution_number=0)] == [1, 1]


def test_a_buggy_program_that_passes_its_problems_tests_is_left_out(write):
    row = {
        "question": "q",
        "difficulty": "interview",
        "input_output": json.dumps(ECHO),
        "solutions": [{"solution": SUMS[0]}],
        "buggy_solutions": [{"solution": SUMS[2]}, {"solution": SUMS[1]}],
    }
    found = load_jsonl_examples(write([row]), LoadingOptions())["all"]
    assert [(e.solution, e.y) for e in found] == [(SUMS[0], 1), (SUMS[1], 0)]


@pytest.mark.parametrize(
    ("solutions", "tests", "message"),
    [
        ("[1]", "", r":1: solutions: got '\[1\]', expected a JSON list of programs"),
        ("[", "", r":1: solutions: got .*, no JSON"),
        ("", "{", r":1: input_output: got .*, no JSON"),
        ("", "[]", r":1: input_output: got list, expected an object"),
        ("", '{"inputs": [1], "outputs": []}', r"two lists of the same length"),
    ],
)
def test_what_is_wrong_with_a_row_of_apps_is_named(write, solutions, tests, message):
    row = {**apps_row(0, SUMS, tests), **({"solutions": solutions} if solutions else {})}
    with pytest.raises(DataError, match=message):
        load_jsonl_examples(write([row]), LoadingOptions())


def test_numbers_of_any_length_and_lines_in_lists_are_read(write):
    long = '{"inputs": [["1 ' + "9" * 5000 + '", "2"]], "outputs": [["3"], ' + "9" * 5000 + "]}"
    with pytest.raises(DataError, match="the same length"):
        load_apps(write, (SUMS, long))
    lines = {"inputs": [["4", "5"]], "outputs": [["9"]]}
    assert [y for _, y in load_apps(write, (SUMS[:1], lines))] == [1]


def test_apps_comes_by_parameters_too(write):
    rows = [apps_row(i, SUMS, ECHO) for i in range(8)]
    section = {"apps_solution_number": 0, "difficulties": ("interview",)}
    made = build_code_validation_datasets(
        parameters(f"jsonl:{write(rows)}", {"make_balanced": False}, **section)
    )
    assert sum(len(data) for data in made.values()) == 8
    assert set(made["train"]["solution"].tolist()) == {SUMS[0]}
