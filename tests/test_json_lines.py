"""All readers of JSON Lines split only at line feeds.

Models write any character, and JSON allows most of them unescaped in strings. Python's
``splitlines`` splits at ten of these.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.analysis.results import JudgedMessage, read_results, write_results
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.rollouts.transcripts import read_report_transcripts
from ratchet.scenarios.code_validation.loaders import LoadingOptions, load_jsonl_examples
from ratchet.scenarios.pure_text.agents.examples import to_lines
from ratchet.service.files import check_training_file
from ratchet.service.training.tokens import _lines
from ratchet.tracking.files import JsonLines

LINE_ENDS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r\n"
TEXTS = st.text(st.one_of(st.sampled_from(LINE_ENDS), st.characters(exclude_categories=["Cs"])))


def chat(text: str) -> dict[str, object]:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return {"messages": messages}


def training_file(file: Path, text: str) -> list[str]:
    file.write_bytes(to_lines([chat(text)] * 3))
    with file.open("rb") as lines:
        assert check_training_file(lines, examples_max=10).examples == 3
    return [line["messages"][1]["content"] for _, line in _lines(file)]


def tracked(file: Path, text: str) -> list[str]:
    lines = [json.dumps({"a": text}, ensure_ascii=escaped) for escaped in (True, False, False)]
    file.write_bytes("".join(line + "\n" for line in lines).encode())
    items, offset = JsonLines(file).read()
    assert offset == file.stat().st_size
    return [item["a"] for item in items]


def transcripts(file: Path, text: str) -> list[str]:
    file.write_bytes(json.dumps({"a": text}, ensure_ascii=False).encode() + b"\n")
    file.write_bytes(file.read_bytes() * 3)
    return [str(item["a"]) for item in read_report_transcripts(file)]


def verdicts(file: Path, text: str) -> list[str]:
    names = JudgedMessage.__dataclass_fields__
    values = {name: 0 if field.type == "int" else text for name, field in names.items()}
    write_results(file, [JudgedMessage(**values)] * 3)
    return [result.answer for result in read_results(file)]


def journal(file: Path, text: str) -> list[str]:
    file.unlink(missing_ok=True)
    request = ChatRequest("m", (ChatMessage("user", text),))

    async def make() -> Completion:
        return Completion(text, "stop", 1, 1, "m")

    async def calls() -> list[str]:
        with CallJournal(file) as calls:
            return [(await calls.call(f"{text}{n}", request, make)).text for n in range(3)]

    asyncio.run(calls())
    with CallJournal(file) as again:
        assert len(again) == 3
    return asyncio.run(calls())


def programs(file: Path, text: str) -> list[str]:
    good, bad = ([{"solution": f"def f(n):\n    return {name}\n"}] for name in "na")
    row = {"question": f"q{text}", "solutions": good, "buggy_solutions": bad}
    row |= {"difficulty": "interview"}
    file.write_bytes((json.dumps(row, ensure_ascii=False) + "\n").encode() * 3)
    splits = load_jsonl_examples(file, LoadingOptions())
    return [found.question.removeprefix("q") for found in splits["all"] if found.y]


READERS = [training_file, tracked, transcripts, verdicts, journal, programs]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_any_text_survives_lines_of_json(
    tmp_path_factory: pytest.TempPathFactory, reader: Callable[[Path, str], list[str]]
) -> None:
    file = tmp_path_factory.mktemp("lines") / "lines.jsonl"

    @settings(max_examples=30, deadline=None)
    @example(text=LINE_ENDS)
    @example(text="\u2028")
    @given(text=TEXTS)
    def survives(text: str) -> None:
        assert reader(file, text) == [text] * 3

    survives()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers())))
@example([5e-324, 0.1, 1e22, 2**70, -0.0])
def test_numbers_in_json_lines_are_read_exactly(tmp_path_factory, numbers):
    lines = JsonLines(tmp_path_factory.mktemp("lines") / "numbers.jsonl")
    lines.append([{"numbers": numbers}])
    ((item,), _) = lines.read()
    assert repr(item["numbers"]) == repr(numbers)


def test_lone_surrogates_are_read_unchanged(tmp_path):
    lines = JsonLines(tmp_path / "events.jsonl")
    lines.append([{"message": "a path with \udcff in it"}])
    assert lines.read()[0] == [{"message": "a path with \udcff in it"}]
