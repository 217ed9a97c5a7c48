"""Tasks are sampled by the seed, read from files, split, and stored bit for bit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet import HyperParameters
from ratchet.errors import DataError, UnknownNameError
from ratchet.language_models.types import ChatMessage
from ratchet.scenarios.language_task.sources.base import read_tasks
from ratchet.scenarios.language_task.sources.pig_latin import pig_latin
from ratchet.scenarios.language_task.task import Task, TaskDataset, check_ids
from ratchet.scenarios.registry import build_scenario


def experiment(dataset, **section):
    options = section.pop("options", {})
    return HyperParameters(
        scenario="language_task", dataset=dataset, trainer="grpo", language_task=section, **options
    )


def datasets(dataset, base_dir=None, **section):
    hyper_params = experiment(dataset, **section)
    return build_scenario("language_task", base_dir).build_datasets(hyper_params)


def answer_of(prompt):
    """Compute an arithmetic answer independently of the task."""
    return str(eval(prompt.rstrip("=").replace("/", "//")))


def test_reverse_is_the_string_backwards():
    made = datasets("reverse", num_train=300, num_test=50)
    for task in [*made["train"], *made["test"]]:
        word = task.prompt.removesuffix("=")
        assert len(word) == 6
        assert set(word) <= set("abcdefgh")
        assert list(task.answer) == list(reversed(word))
    assert len({symbol for task in made["train"] for symbol in task.prompt}) == 9


def test_reverse_takes_other_lengths_and_symbols():
    made = datasets("reverse", num_train=5, num_test=2, reverse={"length": 3, "num_symbols": 62})
    assert {len(task.answer) for task in made["train"]} == {3}


@pytest.mark.parametrize("operations", [["+"], ["-"], ["*"], ["/"], ["+", "-", "*", "/"]])
def test_arithmetic_is_right(operations):
    section = {"operations": operations, "num_digits": 2}
    made = datasets("arithmetic", num_train=200, num_test=40, arithmetic=section)
    for task in [*made["train"], *made["test"]]:
        assert task.answer == answer_of(task.prompt)
        if "/" in task.prompt:
            left, right = task.prompt.rstrip("=").split("/")
            assert int(left) % int(right) == 0


@pytest.mark.parametrize(
    ("word", "said"),
    [
        *(("pig", "igpay"), ("apple", "appleway"), ("string", "ingstray"), ("quick", "ickquay")),
        *(("squad", "adsquay"), ("yellow", "ellowyay"), ("my", "ymay"), ("rhythm", "ythmrhay")),
        *(("through", "oughthray"), ("why", "ywhay"), ("a", "away"), ("school", "oolschay")),
    ],
)
def test_pig_latin_of_known_words(word, said):
    assert pig_latin(word) == said


def test_pig_latin_words_are_made_up_and_varied():
    made = datasets("pig_latin", num_train=300, num_test=40, pig_latin={"num_words": 2})
    for task in made["train"]:
        words = task.prompt.removesuffix("=").split()
        assert task.answer == " ".join(map(pig_latin, words))
        assert len(words) == 2
    text = " ".join(task.prompt for task in made["train"])
    answers = " ".join(task.answer for task in made["train"])
    assert "qu" in text
    assert "way" in answers


@pytest.mark.parametrize("dataset", ["reverse", "pig_latin", "arithmetic"])
def test_no_prompt_comes_twice_or_on_both_sides(dataset):
    made = datasets(dataset)
    prompts = [task.prompt for side in made.values() for task in side]
    assert [len(made[side]) for side in ("train", "test")] == [2000, 200]
    assert len(set(prompts)) == len(prompts)


def test_the_seed_decides_and_larger_sets_begin_as_smaller_ones():
    small = datasets("reverse", num_train=20, num_test=5)
    large = datasets("reverse", num_train=50, num_test=9)
    other = datasets("reverse", num_train=20, num_test=5, options={"seed": 7})
    fixed = datasets("reverse", num_train=20, num_test=5, dataset_seed=7)
    for side in ("train", "test"):
        assert list(large[side])[: len(small[side])] == list(small[side])
        assert other[side].hash != small[side].hash
        assert other[side].hash == fixed[side].hash


def test_too_few_different_tasks_is_said_with_how_many_there_are():
    with pytest.raises(DataError, match=r"only \d+ different train tasks .* expected 99"):
        datasets("reverse", num_train=99, num_test=1, reverse={"length": 2, "num_symbols": 3})


def test_an_unknown_task_is_told_with_the_nearest():
    with pytest.raises(UnknownNameError, match="reverse"):
        datasets("revers")


CUSTOM = """
from ratchet.scenarios.language_task.sources.base import DrawnTasks
from ratchet.scenarios.language_task.task import Task

class Doubling(DrawnTasks):
    def draw(self, rng):
        word = "".join(rng.choice(list("xyz"), size=self.section.task_options["length"]))
        return Task(word, word, word * 2)
"""


def test_custom_tasks(tmp_path):
    (tmp_path / "mine.py").write_text(CUSTOM)
    made = datasets(
        "mine.py:Doubling", tmp_path, num_train=20, num_test=3, task_options={"length": 4}
    )
    assert all(task.answer == task.prompt * 2 and len(task.prompt) == 4 for task in made["train"])


def write_lines(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_tasks_of_a_file_are_divided_by_their_prompts(tmp_path):
    rows = [{"prompt": f"say {i}", "answer": i, "info": {"level": i % 3}} for i in range(200)]
    rows[3] = {"task_id": "named", "messages": [{"role": "user", "content": "hi"}], "answer": "ho"}
    write_lines(tmp_path / "mine.jsonl", rows)
    made = datasets("mine.jsonl", tmp_path)
    again = datasets("mine.jsonl", tmp_path, num_train=10)
    found = {task.task_id: task for side in made.values() for task in side}
    assert len(found) == 200
    assert 15 < len(made["test"]) < 70
    assert found["named"].prompt == (ChatMessage("user", "hi"),)
    assert {task.info["level"] for task in made["train"] if task.info} == {0, 1, 2}
    assert list(again["train"]) == list(made["train"])[:10]
    assert list(again["test"]) == list(made["test"])


def test_a_folder_has_its_own_sides(tmp_path):
    for name, number in {"train": 3, "test": 2, "hard": 1}.items():
        write_lines(
            tmp_path / f"{name}.jsonl",
            [{"prompt": f"{name}{i}", "answer": ""} for i in range(number)],
        )
    made = datasets(".", tmp_path)
    assert {name: len(made[name]) for name in made} == {"train": 3, "test": 2, "hard": 1}
    scenario = build_scenario("language_task", tmp_path)
    assert scenario.test_sets(experiment(".")) == ["test", "hard"]
    assert sorted(scenario.data_files(experiment("."))) == [
        "hard.jsonl",
        "test.jsonl",
        "train.jsonl",
    ]


def test_a_prompt_in_both_files_is_refused(tmp_path):
    for name in ("train", "test"):
        write_lines(tmp_path / f"{name}.jsonl", [{"prompt": "same", "answer": ""}])
    with pytest.raises(DataError, match=r"1 prompts of test\.jsonl are in train\.jsonl too"):
        datasets(".", tmp_path)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"answer": "x"}', "KeyError"),
        ('{"prompt": "x", "anwser": "x"}', "KeyError: 'answer'"),
        ('{"prompt": "x", "answer": null}', "answer is null"),
        ("[1]", "expected an object"),
        ("{", "JSONDecodeError"),
        ('{"prompt": "", "answer": "x"}', "neither of them empty"),
        ('{"prompt": "x", "answer": "x", "info": 3}', "expected an object"),
    ],
)
def test_a_line_that_is_no_task_is_named(tmp_path, line, what):
    (tmp_path / "bad.jsonl").write_text(f'{{"prompt": "good", "answer": ""}}\n{line}\n')
    with pytest.raises(DataError, match=rf"(?s)bad\.jsonl, line 2: .*{what}"):
        datasets("bad.jsonl", tmp_path)


TASKS = [
    Task("one", "a\u2028b\n", "é\x85", {"list": [1, None]}),
    Task("two", (ChatMessage("system", "s"), ChatMessage("user", "u")), "right"),
]


def test_a_saved_dataset_comes_back_the_same(tmp_path):
    dataset = TaskDataset(TASKS)
    dataset.save(tmp_path)
    loaded = TaskDataset.load(tmp_path)
    assert list(loaded) == TASKS
    assert (len(loaded), loaded[-1], list(loaded._tasks[1:])) == (2, TASKS[1], TASKS[1:])
    assert loaded == dataset
    assert TaskDataset(TASKS[:1]) != dataset


@given(text=st.text(min_size=1))
def test_the_key_of_a_text_is_that_of_its_message(text):
    messages = Task("one", (ChatMessage("user", text),))
    assert Task("one", text).prompt_key == messages.prompt_key
    assert json.loads(messages.prompt_key) == [{"role": "user", "content": text}]


@pytest.mark.parametrize("damage", ["changed", "shortened", "gone", "no JSON"])
def test_a_damaged_dataset_is_refused(tmp_path, damage):
    TaskDataset(TASKS).save(tmp_path)
    file = tmp_path / "tasks.jsonl"
    lines = file.read_text().split("\n")
    match damage:
        case "changed":
            file.write_text(file.read_text().replace("right", "wrong"))
        case "shortened":
            file.write_text(lines[0] + "\n")
        case "gone":
            file.unlink()
        case "no JSON":
            file.write_text(f"{lines[0]}\n{lines[1][:-3]}\n")
    with pytest.raises(DataError):
        TaskDataset.load(tmp_path)


def test_an_id_comes_once():
    with pytest.raises(DataError, match="2 tasks of id 'one'"):
        TaskDataset([TASKS[0], TASKS[0]])


def test_a_prompt_that_comes_again_without_ids_is_told_of(tmp_path):
    (tmp_path / "mine").mkdir()
    for side, prompt in (("train", "1+1="), ("test", "2+2=")):
        line = json.dumps({"prompt": prompt, "answer": "x"})
        (tmp_path / "mine" / f"{side}.jsonl").write_text(f"{line}\n{line}\n")
    with pytest.raises(DataError, match="remove repeated prompts, or add ids"):
        datasets("mine", tmp_path)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"task_id": "a", "prompt": "x", "answer": "y"}\n', encoding="utf-8-sig")
    assert [task.task_id for task in read_tasks(file)] == ["a"]


def test_an_id_names_one_prompt_on_all_sides():
    one, same, other = (Task("a", prompt, "y") for prompt in ("x", "x", "z"))
    check_ids({"train": [one], "test": [same]})
    with pytest.raises(DataError, match="'a' names different prompts in train and test"):
        check_ids({"train": [one], "test": [other]})
