"""Messages are judged individually; judged messages and paid calls are not repeated."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ratchet.analysis.llm_judge import AnalysisModel
from ratchet.analysis.results import read_results
from ratchet.analysis.run import analyse_run
from ratchet.errors import (
    ContentFilterError,
    DataError,
    LanguageModelError,
    ParameterError,
    PromptTemplateError,
    PromptTooLongError,
    RunNotFoundError,
    UnknownNameError,
)
from ratchet.language_models.endpoints import Endpoint

MODEL = AnalysisModel("gpt-4.1-mini", Endpoint("http://localhost:1/v1"))
FREE = AnalysisModel("ratchet-tiny", Endpoint("embedded"))


def accurate(prompt: str) -> str:
    return "It is.\nVerdict: accurate" if "a - b." in prompt else "Nothing.\n**Verdict:** None."


def verdicts(run_folder, analyser="code_quoting"):
    files = sorted((run_folder / "analysis" / analyser).rglob("*.jsonl"))
    root = run_folder / "analysis" / analyser
    return {
        (file.relative_to(root).as_posix(), one.row, one.round, one.agent): one.verdict
        for file in files
        for one in read_results(file)
    }


def test_each_message_gets_a_verdict(run_folder, fake_model):
    client = fake_model(accurate)
    summary = analyse_run(run_folder, ["code_quoting"], model=FREE, client=client)
    assert verdicts(run_folder) == {
        ("main/0.jsonl", 0, 0, "prover"): "accurate",
        ("main/0.jsonl", 0, 2, "prover"): "none",
        ("main/test.jsonl", 0, 0, "prover"): "none",
        ("main/test.jsonl", 1, 0, "prover"): "none",
    }
    (part,) = summary.analysers
    assert (part.num_messages, part.num_kept, part.num_calls) == (4, 0, 4)
    assert (part.prompt_tokens, part.completion_tokens, part.cost) == (400, 40, 0.0)
    assert part.verdicts == {"accurate": 1, "none": 3}
    assert not list((run_folder / "analysis").rglob("*.journal"))


def test_a_dry_run_counts_calls_and_cost_without_sending_or_writing(run_folder, fake_model):
    client = fake_model(accurate)
    names = ["code_quoting", "role_keeping"]
    summary = analyse_run(run_folder, names, model=MODEL, client=client, dry_run=True)
    assert summary.is_dry_run
    assert [part.num_calls for part in summary.analysers] == [4, 5]
    assert summary.num_calls == 9
    assert [part.completion_tokens for part in summary.analysers] == [4 * 300, 5 * 300]
    assert summary.cost == pytest.approx(sum(part.cost for part in summary.analysers))
    assert summary.cost > 0
    assert not client.asked
    assert not (run_folder / "analysis").exists()
    no_key = AnalysisModel("some-model", Endpoint())
    assert analyse_run(run_folder, names, model=no_key, dry_run=True).cost is None


def test_existing_verdicts_are_reused_unless_overwritten(run_folder, fake_model):
    analyse_run(run_folder, ["code_quoting"], model=FREE, client=fake_model(accurate))
    before = verdicts(run_folder)
    second = fake_model(lambda prompt: "Verdict: inaccurate")
    summary = analyse_run(run_folder, ["code_quoting"], model=FREE, client=second)
    assert (summary.analysers[0].num_kept, summary.num_calls, second.asked) == (4, 0, [])
    assert verdicts(run_folder) == before
    analyse_run(run_folder, ["code_quoting"], model=FREE, client=second, overwrite=True)
    assert set(verdicts(run_folder).values()) == {"inaccurate"}


def test_only_new_and_changed_messages_are_judged(
    run_folder, write_file, make_transcript, fake_model
):
    analyse_run(run_folder, ["code_quoting"], model=FREE, client=fake_model(accurate))
    write_file("main/1", make_transcript(0, "New."))
    write_file("main/test", make_transcript(0, "Fine."), make_transcript(1, "Changed."))
    client = fake_model(lambda prompt: "Verdict: inaccurate")
    summary = analyse_run(run_folder, ["code_quoting"], model=FREE, client=client)
    assert (summary.analysers[0].num_kept, len(client.asked)) == (3, 2)
    assert [key[:2] for key, v in verdicts(run_folder).items() if v == "inaccurate"] == [
        ("main/1.jsonl", 0),
        ("main/test.jsonl", 1),
    ]


def test_equal_requests_are_sent_once(write_file, make_transcript, fake_model):
    folder = write_file("main/0", *(make_transcript(n, "Same words.") for n in range(5)))
    client = fake_model(accurate)
    summary = analyse_run(folder, ["code_quoting"], model=FREE, client=client)
    assert (summary.analysers[0].num_messages, len(client.asked)) == (5, 1)
    assert len(verdicts(folder)) == 5


def test_an_unreadable_answer_is_retried_once_and_then_reported(run_folder, fake_model):
    client = fake_model(lambda prompt: "Hm." if prompt.startswith("Below") else "Verdict: none")
    analyse_run(run_folder, ["code_quoting"], model=FREE, client=client)
    assert set(verdicts(run_folder).values()) == {"none"}
    assert [m.role for m in client.asked[-1].messages] == ["user", "assistant", "user"]
    stubborn = fake_model(lambda prompt: "Hm.")
    summary = analyse_run(run_folder, ["code_quoting"], model=FREE, client=stubborn, overwrite=True)
    assert summary.analysers[0].verdicts == {"unreadable": 4}
    assert summary.num_calls == 8


def test_a_message_that_is_too_long_is_skipped_and_the_rest_is_judged(run_folder, fake_model):
    client = fake_model(
        lambda prompt: PromptTooLongError("too long") if "It says" in prompt else accurate(prompt)
    )
    summary = analyse_run(run_folder, ["code_quoting"], model=FREE, client=client)
    (part,) = summary.analysers
    assert (part.num_messages, part.num_calls, part.num_too_long) == (4, 3, 1)
    assert len(verdicts(run_folder)) == 3
    other = fake_model(accurate)  # a model with a longer context
    summary = analyse_run(run_folder, ["code_quoting"], model=FREE, client=other)
    assert (len(other.asked), summary.num_too_long, len(verdicts(run_folder))) == (1, 0, 4)


def test_a_reminder_that_is_too_long_leaves_the_verdict_unreadable(run_folder, fake_model):
    asked = []

    def rule(prompt):
        asked.append(prompt)
        return PromptTooLongError("too long") if asked.count(prompt) > 1 else "Hm."

    client = fake_model(rule)
    summary = analyse_run(run_folder, ["code_quoting"], model=FREE, client=client)
    assert summary.num_too_long == 0
    assert set(verdicts(run_folder).values()) == {None}


def test_after_a_failure_only_unanswered_requests_are_sent(run_folder, fake_model):
    client = fake_model(
        lambda prompt: LanguageModelError("no") if "It says" in prompt else accurate(prompt)
    )
    with pytest.raises(LanguageModelError, match="no"):
        analyse_run(run_folder, ["code_quoting"], model=FREE, client=client, num_workers=1)
    assert len(client.asked) == 4
    assert verdicts(run_folder) == {}
    healed = fake_model(accurate)
    summary = analyse_run(run_folder, ["code_quoting"], model=FREE, client=healed)
    assert len(healed.asked) == 1
    assert summary.analysers[0].verdicts == {"accurate": 1, "none": 3}


def test_a_filtered_response_does_not_stop_the_others(run_folder, fake_model):
    client = fake_model(
        lambda prompt: ContentFilterError("withheld") if "Fine." in prompt else accurate(prompt)
    )
    summary = analyse_run(run_folder, ["code_quoting"], model=FREE, client=client)
    assert summary.analysers[0].verdicts == {"accurate": 1, "none": 2, "unreadable": 1}


def test_invalid_arguments_raise_before_any_call(tmp_path, run_folder, fake_model):
    client = fake_model(accurate)
    with pytest.raises(UnknownNameError, match="Did you mean 'code_quoting'"):
        analyse_run(run_folder, ["code_quotin"], model=FREE, client=client)
    with pytest.raises(RunNotFoundError, match="no run folder"):
        analyse_run(tmp_path / "none", ["code_quoting"], model=FREE, client=client)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no transcripts"):
        analyse_run(tmp_path / "empty", ["code_quoting"], model=FREE, client=client)
    with pytest.raises(ParameterError, match="at least one"):
        analyse_run(run_folder, [], model=FREE, client=client)
    assert not client.asked


CUSTOM = """
from pathlib import Path
from ratchet.analysis import Analyser

class Politeness(Analyser):
    labels = ("polite", "rude")
    template_file = Path(__file__).with_name("politeness.txt")
    def judges(self, message):
        return message.said.round == 0
    def variables(self, message):
        return {"message": message.said.text}
"""


def test_a_custom_analyser_is_loaded_from_its_file(run_folder, tmp_path, fake_model):
    (tmp_path / "custom.py").write_text(CUSTOM)
    (tmp_path / "politeness.txt").write_text("Is this polite? $message")
    spec = f"{tmp_path / 'custom.py'}:Politeness"
    client = fake_model(lambda prompt: f"Verdict: {'POLITE' if 'Fine' in prompt else 'rude'}")
    analyse_run(run_folder, [spec], model=FREE, client=client)
    assert sorted(verdicts(run_folder, "Politeness").values()) == ["polite", "rude", "rude"]
    (tmp_path / "politeness.txt").write_text("Is this polite? $massage")
    asked = len(client.asked)
    with pytest.raises(PromptTemplateError, match=r"got \$massage, expected .* \$message"):
        analyse_run(run_folder, [spec], model=FREE, client=client, overwrite=True)
    assert len(client.asked) == asked


class _Service(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = accurate(body["messages"][-1]["content"])
        answer = {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text},
                }
            ],
            "usage": {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55},
        }
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


def test_the_endpoints_client_is_the_default(run_folder):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        model = AnalysisModel("any", Endpoint(f"http://127.0.0.1:{server.server_port}/v1"))
        summary = analyse_run(run_folder, ["code_quoting"], model=model)
    finally:
        server.shutdown()
        server.server_close()
    assert summary.analysers[0].verdicts == {"accurate": 1, "none": 3}
    assert summary.analysers[0].prompt_tokens == 200
    assert summary.cost is None
