"""``ratchet plan`` refuses a budget, warns that it may be insufficient, or accepts it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.planning import plan as planning
from flows.runs.preflight import check_experiment
from flows.runs.resolve import resolve_file
from ratchet.language_models.ledger import Charge, Ledger
from ratchet.scenarios.language_task.sources import repeated_tasks

FILE = str(Path(__file__).parents[3] / "experiments" / "text_demo.yaml")
PAID = ["agents._default.base_url=null", "agents._default.model_name=gpt-4o-mini-2024-07-18"]
MAY_STOP = "may not be enough"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")


def plan(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", FILE, *PAID, *options])
    return result.exit_code, " ".join(result.output.split())


def test_a_budget_between_the_estimate_and_the_upper_bound_gives_a_warning() -> None:
    code, said = plan()
    assert code == 0
    readable = float(re.search(r"training tokens, cost ([\d.]+), about", said)[1])  # type: ignore[index]
    most = float(re.search(r"calls and cost ([\d.,]+), if", said)[1].replace(",", ""))  # type: ignore[index]
    assert 1 < readable < most
    assert MAY_STOP not in said
    code, said = plan("--budget", str((readable + most) / 2))
    assert (code, MAY_STOP in said) == (0, True)
    assert f"up to {most:.2f} could be needed" in said
    code, said = plan("--budget", str(most + 1))
    assert (code, MAY_STOP in said) == (0, False)
    code, said = plan("--budget", str(readable - 1))
    assert code == 1
    assert "may cost up to" in said


def test_a_plan_lists_the_agents_that_act_and_decide_in_each_round() -> None:
    code, said = plan("interaction_protocol=debate", "debate_protocol.max_message_rounds=3")
    assert code == 0
    assert "Rounds of debate: 0, 2: verifier (may decide); 1: prover0, prover1." in said
    assert "A decision in round 0 ends an episode before any action of prover0 and prover1" in said
    assert "num_invalid_generation_retries" in said
    code, said = plan(
        "interaction_protocol=debate",
        "debate_protocol.max_message_rounds=3",
        "debate_protocol.min_message_rounds=3",
    )
    assert "Rounds of debate: 0: verifier; 1: prover0, prover1; 2: verifier (may decide)." in said
    assert "ends an episode before" not in said


def test_previous_charges_of_the_run_count_towards_the_budget() -> None:
    budget = 10_000.0
    assert plan("--budget", str(budget))[0] == 0
    path = resolve_file(FILE, PAID).run_path
    path.mkdir(parents=True)
    ledger = Ledger(path=path / "ledger.jsonl")
    ledger.settle("job", Charge(budget - 5, budget - 0.01))
    ledger.close()
    code, said = plan("--budget", str(budget))
    assert code == 1
    assert "in addition to at most 9999.99 billed so far" in said


CUSTOM = """
from trainers import PureTextRlTrainer

class Trees(PureTextRlTrainer):
    async def _sample_one(self, environment, iteration, planned, calls):
        return await super()._sample_one(environment, iteration, planned, calls)

    def _stage_create_fine_tune_jobs(self, rollouts):
        pass
"""
SAID = """
    @classmethod
    def responses_per_step(cls, hyper_params):
        return 2
"""


def test_the_calls_of_a_custom_trainer_are_unknown_unless_declared(tmp_path: Path) -> None:
    custom = f"trainer={{module_path: {tmp_path / 'trees.py'}, class_name: Trees}}"
    (tmp_path / "trees.py").write_text(CUSTOM)
    code, said = plan(custom)
    assert code == 0
    assert "unknown" in said
    assert "`responses_per_step`" in said
    assert "If all replies are valid" not in said
    code, said = plan(custom, "--budget", "1000000")
    assert code == 1
    assert "number of calls is unknown" in said
    (tmp_path / "trees.py").write_text(CUSTOM + SAID)
    code, said = plan(custom)
    assert "unknown" not in said
    assert "If all replies are valid" in said


@pytest.mark.slow
def test_stored_language_stages_give_no_bound_on_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound covers stages to do; without any it would be 0."""
    file = FILE.replace("text_demo", "reverse_grpo")
    bound = "Language models write at most"
    assert bound in CliRunner().invoke(app, ["plan", file]).output
    stored = [replace(each, hit=True) for each in planning.plan(resolve_file(file))]
    monkeypatch.setattr(planning, "plan", lambda _: stored)
    output = CliRunner().invoke(app, ["plan", file]).output
    assert "stored" in output
    assert bound not in output


ROWS = [f'{{"prompt": "What is {i}+1?", "answer": "{i + 1}"}}' for i in range(20)]


def plan_of_tasks(folder: Path, lines: list[str]) -> tuple[int, str]:
    (folder / "questions.jsonl").write_text("\n".join(lines))
    file = folder / "own.yaml"
    file.write_text("scenario: language_task\ndataset: questions.jsonl\ntrainer: grpo\n")
    result = CliRunner().invoke(app, ["plan", str(file), "agents._default.model=small"])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.slow
def test_repeated_prompts_are_named_by_line_and_text(tmp_path: Path) -> None:
    assert plan_of_tasks(tmp_path, ROWS)[0] == 0
    code, output = plan_of_tasks(tmp_path, [*ROWS[:5], "", ROWS[3], *ROWS[5:], ROWS[3]])
    assert code == 2
    assert "questions.jsonl: got repeated tasks (lines 4, 7, 23: 'What is 3+1?')" in output


def test_files_of_stored_tasks_are_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan_of_tasks(tmp_path, ROWS)[0] == 0
    experiment = resolve_file(tmp_path / "own.yaml", ["agents._default.model=small"])
    checked: list[str] = []
    monkeypatch.setattr(
        repeated_tasks, "check_repeated_tasks", lambda dataset, _: checked.append(dataset)
    )
    check_experiment(experiment)
    assert checked == ["questions.jsonl"]
    key = experiment.keys[0].build_scenario().key
    peek = experiment.store.peek
    monkeypatch.setattr(
        experiment.store, "peek", lambda each, **more: "stored" if each == key else peek(each)
    )
    check_experiment(experiment)
    assert len(checked) == 1


def test_tasks_with_different_ids_may_have_one_prompt(tmp_path: Path) -> None:
    repeated = ['{"task_id": "a", "prompt": "?", "answer": ""}', *ROWS]
    assert plan_of_tasks(tmp_path, [*repeated, repeated[0].replace("a", "b", 1)])[0] == 0
