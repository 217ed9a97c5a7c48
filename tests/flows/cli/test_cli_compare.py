"""The commands `ratchet compare` and `ratchet sweep`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "reports"))

from made_runs import make_run, make_sweep

from flows.cli.main import app
from ratchet.tracking.preregistration import Preregistration, PreregistrationRecord
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord, write_sweep


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ratchet(*arguments):
    return CliRunner().invoke(app, list(arguments))


def record(
    folders, command=("/x/bin/ratchet", "sweep", "made.yaml", "settings.home=/x/home", "seed=0..2")
):
    members = [SweepMemberRecord(run_id=folder.run_id, changes={}) for folder in folders]
    return SweepRecord(
        sweep_id="made-sweep-1", name="made", grid={}, members=members, command=list(command)
    )


def test_a_sweep_is_compared_by_name_with_files_in_its_folder():
    write_sweep("runs", record(make_sweep(Path("runs"))))
    result = ratchet("compare", "made-sweep", "--update-page", "docs/made.md", "--title", "Made")
    assert result.exit_code == 0, result.output
    assert "accuracy on the test set" in result.output
    written = sorted(path.name for path in Path("runs/made-sweep-1").glob("comparison.*"))
    assert written == ["comparison.html", "comparison.json", "comparison.md", "comparison.svg"]
    page = Path("docs/made.md").read_text()
    assert page.startswith("# Made\n")
    assert "```\nratchet sweep made.yaml seed=0..2\n" in page
    assert "/x" not in page
    assert Path("docs/made.svg").exists()


def test_runs_are_compared_by_name_with_a_warning_for_one_seed():
    for protocol, right in (("adp", 5), ("nip", 7)):
        make_run(Path("runs"), protocol, right, interaction_protocol=protocol)
    result = ratchet("compare", "adp", "nip", "--interval", "percentile")
    assert result.exit_code == 0, result.output
    assert "n < 5" in result.output
    assert "Groups with fewer than 5 seeds have no interval" in result.output
    assert len(list(Path("runs").glob("comparison-*/comparison.md"))) == 1


def test_a_baseline_and_an_effect_are_options():
    write_sweep(
        "runs",
        record(
            make_sweep(
                Path("runs"),
                protocols=("adp", "nip", "mnip"),
                rights=((5, 6, 7), (8, 9, 9), (1, 2, 3)),
            )
        ),
    )
    options = ("--baseline", "nip", "--effect", "0.1", "--less", "test/mean_episode_length")
    result = ratchet("compare", "made-sweep", *options)
    assert result.exit_code == 0, result.output
    text = next(Path("runs").glob("*/comparison.md")).read_text()
    assert "| adp − nip |" in text
    assert "| mnip − nip |" in text
    assert "adp − mnip" not in text
    assert "seeds for 10.0" in text
    assert "## Mean episode length (test); less is better" in text
    assert ratchet("compare", "made-sweep", "--baseline", "npi").exit_code == 2


@pytest.mark.slow
def test_a_preregistration_is_shown_and_used_for_its_sweep_only():
    folders = make_sweep(
        Path("runs"), protocols=("adp", "nip", "mnip"), rights=((5, 6, 7), (8, 9, 9), (1, 2, 3))
    )
    content = Preregistration(seeds=[0, 1, 2], baselines=["nip"])
    registered = PreregistrationRecord.create(content, [folder.run_id for folder in folders])
    write_sweep("runs", record(folders).model_copy(update={"preregistered": registered}))
    result = ratchet("compare", "made-sweep")
    assert result.exit_code == 0, result.output
    assert f"(digest {registered.digest}): accuracy; seeds 0–2; each group with nip." in (
        result.output
    )
    text = Path("runs/made-sweep-1/comparison.md").read_text()
    assert "| mnip − nip |" in text
    assert "adp − mnip" not in text
    result = ratchet("compare", "made-sweep", "--pair", "adp vs mnip")
    assert "and this comparison differs: adp vs mnip." in result.output
    other = make_run(Path("runs"), "debate", 7, interaction_protocol="debate")
    result = ratchet("compare", "made-sweep", other.run_id)
    assert result.exit_code == 0, result.output
    assert "Preregistered" not in result.output


def test_refusals_contain_advice():
    folders = make_sweep(Path("runs"))
    folders[0].set_status("failed", "by hand")
    write_sweep("runs", record(folders))
    result = ratchet("compare", "made-sweep-1")
    assert result.exit_code == 2
    assert "ratchet resume adp-0" in result.output
    assert ratchet("compare", "made-sweep-1", "--skip-unfinished").exit_code == 0
    (Path("runs") / "nip-2" / "manifest.json").unlink()
    result = ratchet("compare", "made-sweep-1")
    assert result.exit_code == 2
    assert "Resume the sweep: ratchet sweep made.yaml seed=0..2" in result.output
    assert ratchet("compare", "nowhere").exit_code == 2


def test_a_dry_run_only_lists_the_members():
    Path("exp.yaml").write_text(
        "scenario: graph_isomorphism\ntrainer: vanilla_ppo\ndataset: generated\n"
    )
    result = ratchet("sweep", "exp.yaml", "interaction_protocol=nip,adp", "seed=0..1", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "4 members" in result.output
    assert "interaction_protocol=adp seed=1" in result.output
    assert "Each seed has its own training and test data" in result.output
    assert sorted(path.name for path in Path().iterdir()) == ["exp.yaml"]
    result = ratchet("sweep", "exp.yaml", "interaction_protocol=nip,apd", "--dry-run")
    assert result.exit_code == 2
    assert "interaction_protocol=apd" in result.output
    assert "Did you mean 'adp'" in result.output


def test_a_dry_run_of_a_large_sweep_resolves_only_a_sample(monkeypatch):
    from flows.sweeps import members

    made = []
    resolve = members.resolve
    monkeypatch.setattr(members, "resolve", lambda *a, **k: made.append(a) or resolve(*a, **k))
    Path("exp.yaml").write_text(
        "scenario: graph_isomorphism\ntrainer: vanilla_ppo\ndataset: generated\n"
    )
    result = ratchet(
        "sweep", "exp.yaml", "interaction_protocol=nip,adp", "seed=0..49999", "--dry-run"
    )
    assert result.exit_code == 0, result.output
    assert "100,000 members" in result.output
    assert "interaction_protocol=adp seed=0" in result.output
    assert len(made) < 100
    result = ratchet(
        "sweep", "exp.yaml", "seed=0..49999", "interaction_protocol=nip,apd", "--dry-run"
    )
    assert result.exit_code == 2
    assert "Did you mean 'adp'" in result.output


LARGE = """
import sys
sys.argv[0] = "ratchet"
from flows.cli.main import app
try:
    app(["sweep", "exp.yaml", "seed=0..99999", "--dry-run"])
except SystemExit as end:
    assert not end.code
heavy = {"torch", "tensordict", "prefect", "mlflow", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_dry_run_of_a_large_sweep_imports_no_heavy_packages():
    Path("exp.yaml").write_text(
        "scenario: graph_isomorphism\ntrainer: vanilla_ppo\ndataset: generated\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "100,000 members" in done.stdout
    assert "Each seed has its own training and test data" in done.stdout + done.stderr
