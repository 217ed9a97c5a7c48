"""Common mistakes give a short message with advice before a run starts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from flows.cli.main import COMMANDS, app
from ratchet.tracking.run_folder import list_runs

ROOT = Path(__file__).parents[3]
LANGUAGE = str(ROOT / "experiments" / "reverse_grpo.yaml")
SMALL = str(ROOT / "experiments" / "binary_erasure_channel.yaml")
RUNNER = CliRunner()
ONE_SCREEN = 24

BLOCK = """
import importlib.abc
import sys


class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocker())
"""
RATCHET = "import sys; sys.argv[0] = 'ratchet'; from flows.cli.main import app; app()"
BROKEN_TRAINER = """
import os
import re
from pathlib import Path

import torch

from trainers import Trainer
from trainers.named import TrainerTraits


class Broken(Trainer):
    traits = TrainerTraits(plays_text=False)

    def train(self):
        with Path("attempts.txt").open("a") as file:
            file.write("attempt ")
        {work}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_DEBUG", raising=False)


def environment(**changes: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "PREFECT_SERVER_ANALYTICS_ENABLED": "0", **changes}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    return {**inherited, **own}


def ratchet_without(
    packages: tuple[str, ...], folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line without certain packages."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BLOCK.format(names=packages))
    return subprocess.run(
        [sys.executable, "-c", RATCHET, *arguments],
        env=environment(PYTHONPATH=f"{site}{os.pathsep}{ROOT}"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_folder_is_refused_with_the_experiments_in_it(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("")
    result = RUNNER.invoke(app, ["run", str(tmp_path)])
    said = "".join(result.output.split())
    assert result.exit_code == 2
    assert f"{tmp_path}:isafolder,expectedafile.Available:{tmp_path}/one.yaml" in said


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_all_problems_of_an_experiment_are_reported_before_it_starts(
    command: str, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(Path(SMALL).read_text() + "settings: {device: cdua, store: 'gs://bucket/x'}\n")
    result = RUNNER.invoke(app, [command, str(file)])
    said = " ".join(result.output.split())
    assert result.exit_code == (2 if command == "run" else 1)
    assert "settings.device: got 'cdua', expected cpu, cuda, cuda:N or mps." in said
    assert "Did you mean 'cuda'?" in said
    assert "settings.store: gs://bucket/x needs gcsfs, not installed here." in said
    assert "pip install gcsfs" in said
    assert command == "doctor" or len(result.output.splitlines()) < 5
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.yaml"]


@pytest.mark.parametrize("place", ["home", "runs"])
def test_folders_that_are_urls_are_refused(place: str) -> None:
    result = RUNNER.invoke(app, ["run", SMALL, f"settings.{place}=gs://bucket/x"])
    assert result.exit_code == 2
    assert f"settings.{place}: got 'gs://bucket/x'" in result.stderr
    assert "only `store` may be a URL" in result.stderr


def test_an_unknown_kind_of_store_is_reported() -> None:
    result = RUNNER.invoke(app, ["plan", SMALL, "settings.store=s33://bucket/x"])
    assert result.exit_code == 2
    assert "settings.store: got 's33://bucket/x', expected a folder, s3://" in result.stderr


@pytest.mark.slow
def test_a_missing_device_is_reported_but_can_be_planned_for() -> None:
    import torch

    there = torch.accelerator.current_accelerator(check_available=True)
    name = "mps" if there is not None and there.type == "cuda" else "cuda"
    planned = RUNNER.invoke(app, ["plan", SMALL, f"settings.device={name}"])
    run = RUNNER.invoke(app, ["run", SMALL, f"settings.device={name}"])
    for result in (planned, run):
        assert result.exit_code == 2
        assert f"settings.device: got '{name}', but torch" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert "to do" in planned.stdout
    assert not Path("runs").exists()


@pytest.mark.parametrize(("kind", "expected"), [("cuda", "expected at most 1"), ("mps", "cuda or")])
def test_more_processes_than_devices_are_refused(
    kind: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    device = torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: device)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    shared = ["language.train_service.world_size=2", f"settings.device={kind}"]
    result = RUNNER.invoke(app, ["run", LANGUAGE, *shared])
    assert result.exit_code == 2
    assert f"world_size: got 2 with settings.device={kind}" in result.stderr
    assert expected in result.stderr


@pytest.mark.in_turn(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("packages", "file", "override", "extra"),
    [
        (("gymnasium", "pettingzoo", "mpe2"), "simple_spread.yaml", "seed=1", "rl"),
        (("hydra",), "cartpole_dqn.yaml", "seed=1", "rl"),
        (("tokenizers", "transformers"), "text_demo.yaml", "seed=1", "llm"),
        (("datasets",), "digits.yaml", "dataset=mnist", "hub"),
    ],
)
def test_a_missing_extra_is_reported_with_its_install_command(
    packages: tuple[str, ...], file: str, override: str, extra: str, tmp_path: Path
) -> None:
    path = str(ROOT / "experiments" / file)
    done = ratchet_without(packages, tmp_path, "run", path, override)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'ratchet-experiments[{extra}]'" in done.stderr
    assert packages[0] in done.stderr
    assert len((done.stdout + done.stderr).splitlines()) < 5
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_search_without_optuna_is_refused(tmp_path: Path) -> None:
    file = str(ROOT / "experiments" / "binary_erasure_channel_search.yaml")
    done = ratchet_without(("optuna",), tmp_path, "sweep", file, "--dry-run")
    assert done.returncode == 2, done.stderr
    assert "a sweep of kind optuna needs optuna" in done.stderr
    assert "pip install 'ratchet-experiments[sweeps]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("package", "extra"), [("tokenizers", "llm"), ("httptools", "service")])
def test_the_service_reports_missing_packages(package: str, extra: str, tmp_path: Path) -> None:
    done = ratchet_without((package,), tmp_path, "llm", "serve")
    assert done.returncode == 2, done.stderr
    assert f"pip install 'ratchet-experiments[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_reports_missing_extras(tmp_path: Path) -> None:
    done = ratchet_without(("peft",), tmp_path, "doctor", "--json")
    rows = {row["checked"]: row for row in json.loads(done.stdout)["tables"][0]["rows"]}
    assert rows["[finetune]"]["result"] == "warning"
    assert "pip install 'ratchet-experiments[finetune]'" in rows["[finetune]"]["details"]
    assert rows["[llm]"]["result"] == "ok"


def broken_run(folder: Path, work: str, *flags: str, command: str = "run") -> subprocess.Popen[str]:
    """Start a run or a sweep whose training executes the given code."""
    (folder / "broken.py").write_text(BROKEN_TRAINER.format(work=work))
    (folder / "broken.yaml").write_text(
        "scenario: binary_erasure_channel\ntrainer: broken.py:Broken\ndataset: generated\n"
        "interaction_protocol: adp\nbinary_erasure_channel.num_datapoints: 20\n"
        "settings: {retry_delay_seconds: 0, tracking: false}\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", RATCHET, command, "broken.yaml", *flags],
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.in_turn(1)
@pytest.mark.slow
@pytest.mark.parametrize("flag", ["", "--debug"])
def test_too_large_an_allocation_is_tried_once_and_reported(flag: str, tmp_path: Path) -> None:
    process = broken_run(tmp_path, "torch.empty(10**15)", *filter(None, [flag]))
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 1, errors
    assert (tmp_path / "attempts.txt").read_text().split() == ["attempt"]
    assert "out of memory" in errors
    assert "Reduce the parameters that set the sizes of tensors: rl.frames_per_batch" in errors
    assert ("Traceback" in errors) == bool(flag)
    assert flag or len((output + errors).splitlines()) < ONE_SCREEN


@pytest.mark.slow
def test_a_failed_run_is_reported_briefly_with_the_command_to_resume(tmp_path: Path) -> None:
    process = broken_run(tmp_path, "raise ConnectionError('an error in user code')")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert len((tmp_path / "attempts.txt").read_text().split()) == 4, "it is retried"
    assert "ConnectionError: an error in user code" in errors
    assert "ratchet resume broken-" in errors
    assert "Traceback" not in errors
    assert len((output + errors).splitlines()) < ONE_SCREEN


@pytest.mark.in_turn(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whole_group", "command"),
    [
        pytest.param(signal.SIGINT, False, ["run"], marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGTERM, False, ["run"], marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGHUP, False, ["run"], id="closed terminal"),
        pytest.param(signal.SIGINT, True, ["run"], id="Ctrl-C in a terminal"),
        (signal.SIGTERM, False, ["sweep", "seed=0,1", "--name", "both"]),
    ],
)
def test_an_interrupted_run_is_reported_with_a_separate_exit_code(
    tmp_path: Path, number: signal.Signals, whole_group: bool, command: list[str]
) -> None:
    """Interrupts a stage that would take five minutes."""
    work = "[__import__('time').sleep(0.05) for _ in range(6000)]"
    process = broken_run(tmp_path, work, *command[1:], command=command[0])
    deadline = time.monotonic() + 300
    while not (tmp_path / "attempts.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    started = [each for each in family if "flows.process.temporary_server" not in each.cmdline()]
    if whole_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert "Interrupted. Finished stages are stored" in errors
    assert "Traceback" not in errors
    assert "ConnectError" not in errors
    assert len((output + errors).splitlines()) < ONE_SCREEN
    (run,) = list_runs(tmp_path / "runs")
    assert run.status == "interrupted"
    _, left = psutil.wait_procs(started, timeout=120)
    assert not left


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "protocol"), "unknown 'protocol'. Did you mean 'protocols'?"),
        (("new", "mine", "--kind", "sceanrio"), "unknown 'sceanrio'. Did you mean 'scenario'?"),
        (("compare", "a", "--interval", "bca"), "unknown 'bca'. Known: expanded, percentile"),
    ],
)
def test_a_wrong_choice_names_the_nearest_one(arguments: tuple[str, ...], message: str) -> None:
    output = RUNNER.invoke(app, arguments).output
    assert message in output
    assert "Value error" not in output


@pytest.mark.parametrize("command", sorted(name for group in COMMANDS.values() for name in group))
def test_help_has_no_types_of_python(command: str) -> None:
    output = RUNNER.invoke(app, [command, "--help"]).output
    assert not re.search(r"list\[|range>|<[A-Z]|e-\d\d|\.\.\.\]\.\.\.", output)
