"""Runs are exported to one file and imported completely, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flows.cli.main import app
from flows.runs import import_run as import_module
from flows.runs.export import export_run
from flows.runs.garbage_collection import GarbageCollector, RetentionLimits
from flows.runs.import_run import ImportedRun, import_run
from ratchet.errors import DataError, RunStateError, StoreError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.archive import Member, abandoned_archives, write_archive
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.keys import stage_key
from ratchet.store.store import StageStore
from ratchet.tracking.environment import CodeState, capture_code_state, made_with
from ratchet.tracking.manifest import RunManifest, StageRecord
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_lock import RunLock

CODE = Fingerprint.from_modules({"trainers.one": "1" * 64})


def settings_in(folder: Path) -> ExperimentSettings:
    return ExperimentSettings(home=str(folder / "home"), runs=str(folder / "runs"))


def make_run(folder: Path) -> RunFolder:
    """Create a run with two recorded stages; the first depends on an unrecorded one."""
    settings = settings_in(folder)
    store = StageStore(settings.store_url)
    keys: list[str] = []
    for iteration in (1, 2, 3):
        parameters, inputs = {"lr": 0.1, "n": 1e-05}, {"base": keys[-1]} if keys else {}
        key = stage_key("train", iteration, parameters, inputs, CODE.digest)
        with store.claim(key) as claim:
            (claim.workdir / "state").mkdir()
            (claim.workdir / "state" / "weights.bin").write_bytes(bytes(range(200)) * iteration)
            claim.commit(
                stage="train",
                iteration=iteration,
                parameters=parameters,
                inputs=inputs,
                fingerprint=CODE,
                metrics=[{"iteration": iteration, "values": {"loss": float("nan")}}],
            )
        keys.append(key)
    manifest = RunManifest(
        run_id="far-1",
        name="far",
        status="completed",
        settings={**settings.to_dict(), "tracking_uri": "http://me:secret@there"},
        versions={"python": "2.7", "torch": "0.1"},
        code=CodeState(commit="c" * 40, dirty=True),
        tracking={"uri": "http://me:secret@there"},
        command=["ratchet", "run", "settings.tracking_uri=http://me:secret@there"],
        checkpoints={"main": [str(folder / f"home/store/stages/{keys[-1]}/state/weights.bin")]},
    )
    run = RunFolder.create(settings.runs, manifest)
    records = [StageRecord(stage="train", iteration=i, key=keys[i - 1], hit=False) for i in (2, 3)]
    run.record_stages(records)
    run.append_metrics("train", 1, {"loss": 0.5})
    (run.path / "report.html").write_text('<html><script src="../plot.js"></script>')
    (run.path.parent / "plot.js").write_text("draw()")
    (run.path / "mlflow.json").write_text('{"tracking_uri": "http://me:secret@there"}')
    (run.path / ".running").mkdir()
    return run


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "there")
    export_run("far", tmp_path / "far.zip", run.path.parent)
    return tmp_path / "far.zip"


def unpack(path: Path, tmp_path: Path) -> ImportedRun:
    return import_run(path, settings_in(tmp_path / "here"))


def test_an_import_restores_the_run_with_all_inputs_of_its_stages(
    packed: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "there" / "home")
    done = unpack(packed, tmp_path)
    assert (done.new, done.num_present, done.other_bytes, done.has_code) == (3, 0, (), False)
    store = StageStore(settings_in(tmp_path / "here").store_url)
    assert [store.verify(manifest.key) for manifest in store.iterate()] == [[]] * 3
    manifest = done.folder.manifest
    assert len(manifest.stages) == 2
    assert manifest.settings["home"] == str(tmp_path / "here" / "home")
    (weights,) = manifest.checkpoints["main"]
    assert Path(weights).read_bytes() == bytes(range(200)) * 3
    assert [point.values for point in done.folder.read_metrics()] == [{"loss": 0.5}]
    assert (done.folder.path / "report.html").read_text() == "<html><script>draw()</script>"
    told = {each.name: (each.there, each.here) for each in done.environment}
    assert told["torch"][0] == "0.1"
    assert told["code"][0] == "c" * 12 + " with changes"
    again = unpack(packed, tmp_path)
    assert (again.new, again.num_present) == (0, 3), "a repeated import changes nothing"
    assert not [path for path in done.folder.path.parent.iterdir() if path.name[0] == "."]


def test_an_import_on_the_same_machine_lists_no_differences(tmp_path: Path) -> None:
    run = make_run(tmp_path / "there")
    run.update(versions=made_with(torch.get_num_threads()), code=capture_code_state())
    export_run("far", tmp_path / "far.zip", run.path.parent)
    code = (
        "import pathlib; from flows.runs.import_run import import_run;"
        "from ratchet.parameters.settings import ExperimentSettings;"
        "settings = ExperimentSettings(runs='runs', home='home');"
        "print(import_run(pathlib.Path('far.zip'), settings).environment)"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    assert subprocess.check_output(command, env=environment, cwd=tmp_path, text=True) == "()\n"


def test_exports_are_reproducible_and_contain_no_secret(packed: Path, tmp_path: Path) -> None:
    moved = unpack(packed, tmp_path)
    export_run("far", tmp_path / "again.zip", tmp_path / "there" / "runs")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    export_run("far", tmp_path / "other.zip", moved.folder.path.parent)
    assert b"secret" not in packed.read_bytes()
    with zipfile.ZipFile(packed) as archive:
        assert archive.testzip() is None, "any program can read it"
        names = archive.namelist()
    assert names[:2] == ["archive.json", "run/manifest.json"]
    assert not [name for name in names if "/." in name]


def test_files_of_a_custom_mirror_stay_and_its_code_moves(tmp_path: Path) -> None:
    run = make_run(tmp_path / "there")
    (tmp_path / "mine.py").write_text(
        "from ratchet.tracking.mirrors.base import Mirror\n"
        "class Mine(Mirror):\n    files = ('mine',)\n    def sync(self, folder): return ''\n"
    )
    content = json.loads((run.path / "manifest.json").read_text())
    content["settings"] |= {"mirrors": ["mine.py:Mine"], "base_dir": str(tmp_path)}
    (run.path / "manifest.json").write_text(json.dumps(content))
    (run.path / "mine").mkdir()
    (run.path / "mine" / "sent.json").write_text("secret")
    export_run("far", tmp_path / "far.zip", run.path.parent)
    with zipfile.ZipFile(tmp_path / "far.zip") as archive:
        assert [name for name in archive.namelist() if "mine" in name] == ["code/mine.py"]
    moved = unpack(tmp_path / "far.zip", tmp_path).folder
    export_run("far", tmp_path / "again.zip", moved.path.parent)


def leaves_nothing(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"No member is read|does not match its key|unexpected file|invalid run manifest",
    ):
        unpack(packed, tmp_path)
    assert not (tmp_path / "here").exists()


def test_a_truncated_or_altered_archive_is_refused_without_leftovers(
    packed: Path, tmp_path: Path
) -> None:
    content = packed.read_bytes()
    places = range(0, len(content), max(len(content) // 60, 1))
    for place in [*places, len(content) - 1]:
        altered = bytearray(content)
        altered[place] ^= 1
        packed.write_bytes(altered)
        leaves_nothing(packed, tmp_path)
    for length in (0, 10, 63, 64, len(content) // 2, len(content) - 1):
        packed.write_bytes(content[:length])
        leaves_nothing(packed, tmp_path)
    packed.write_bytes(content + b"more")
    leaves_nothing(packed, tmp_path)


Change = Callable[[list[tuple[zipfile.ZipInfo, bytes]]], None]


def forge(packed: Path, change: Change) -> None:
    """Rewrite the archive with a change and a matching digest."""
    with zipfile.ZipFile(packed) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    change(members)
    with zipfile.ZipFile(packed, "w") as archive:
        for info, content in members:
            archive.writestr(info, content)
        archive.comment = b"0" * 64
    seal(packed)


def seal(packed: Path) -> None:
    content = packed.read_bytes()[:-64]
    packed.write_bytes(content + hashlib.sha256(content).hexdigest().encode())


def add(name: str, kind: int = stat.S_IFREG) -> Change:
    def change(members: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = (kind | 0o644) << 16
        members.append((info, b"/etc/passwd"))

    return change


def compressed(members: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
    members[-1][0].compress_type = zipfile.ZIP_DEFLATED


def other_weights(members: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
    place = next(i for i, (info, _) in enumerate(members) if info.filename.endswith("weights.bin"))
    members[place] = (members[place][0], bytes(len(members[place][1])))


def in_the_index(path: str, kind: int = stat.S_IFREG) -> Change:
    """Add a file to the index and to the archive, with its correct digest."""

    def change(members: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
        add(path, kind)(members)
        index = json.loads(members[0][1])
        digest = hashlib.sha256(b"/etc/passwd").hexdigest()
        index["files"][path] = {"size": len(b"/etc/passwd"), "sha256": digest}
        members[0] = (members[0][0], json.dumps(index).encode())

    return change


def another_key(members: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
    """Change a stage's recorded parameters and all its digests."""
    from ratchet.store.manifest import Manifest

    index = json.loads(members[0][1])
    key = next(iter(index["stages"]))
    name = f"stages/{key}/manifest.json"
    place = next(i for i, (info, _) in enumerate(members) if info.filename == name)
    manifest = Manifest.from_bytes(members[place][1], key)
    text = manifest.model_copy(update={"parameters": {"lr": 9.0}}).to_bytes()
    index["stages"][key] = hashlib.sha256(text).hexdigest()
    members[place] = (members[place][0], text)
    members[0] = (members[0][0], json.dumps(index).encode())


@pytest.mark.parametrize(
    "change",
    [
        *(add("run/../../evil"), add("/evil"), add("run\\evil"), add("C:evil"), add("run//x")),
        *(add("run/link", stat.S_IFLNK), add("run/folder/", stat.S_IFDIR), add("run/extra")),
        *(add("archive.json"), compressed, other_weights, another_key),
        *(in_the_index("elsewhere/x"), in_the_index("../x"), in_the_index("run/../../evil")),
        *(in_the_index("run/link", stat.S_IFLNK), in_the_index("run//x")),
        *(
            in_the_index("run/code/x"),
            in_the_index("run/report.html/x"),
            in_the_index("run/tables"),
        ),
        *(in_the_index(f"run/{'x' * 300}"), in_the_index("run/.running/x.lock")),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_forged_archive_is_refused_without_leftovers(
    packed: Path, tmp_path: Path, change: Change
) -> None:
    forge(packed, change)
    leaves_nothing(packed, tmp_path)
    assert not (tmp_path / "evil").exists()


def test_servers_and_external_paths_in_a_manifest_are_discarded(
    packed: Path, tmp_path: Path
) -> None:
    def change(members: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
        index, manifest = json.loads(members[0][1]), json.loads(members[1][1])
        manifest["settings"]["tracking_uri"] = "http://evil"
        manifest["tracking"] = {"uri": "http://evil"}
        key = next(iter(index["stages"]))
        manifest["checkpoints"] = {"main": ["/x/stages/../../evil", f"/stages/{key}/../../evil"]}
        text = json.dumps(manifest).encode()
        digest = hashlib.sha256(text).hexdigest()
        index["files"]["run/manifest.json"] = {"size": len(text), "sha256": digest}
        members[0], members[1] = (members[0][0], json.dumps(index).encode()), (members[1][0], text)

    forge(packed, change)
    assert b"evil" not in (unpack(packed, tmp_path).folder.path / "manifest.json").read_bytes()


def test_absurd_sizes_are_refused(packed: Path, tmp_path: Path) -> None:
    content = bytearray(packed.read_bytes())
    entry = content.rindex(b"PK\x01\x02")  # last entry of the central directory
    content[entry + 20 : entry + 28] = (2**31).to_bytes(4, "little") * 2
    packed.write_bytes(content)
    seal(packed)
    leaves_nothing(packed, tmp_path)


def test_missing_disk_space_is_reported_before_writing(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=40 * 2**20))
    with pytest.raises(StoreError, match="bytes free, expected"):
        unpack(packed, tmp_path)
    assert list((tmp_path / "here").glob("**/manifest.json")) == []


def test_a_collection_during_an_import_retains_its_stages(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, put = settings_in(tmp_path / "here"), import_module._put_run

    def collected_first(*arguments: Any) -> None:
        limits = RetentionLimits(older_than=0)
        collector = GarbageCollector(
            StageStore(settings.store_url), Path(settings.home), (), limits
        )
        assert collector.remove(collector.plan()) == []
        put(*arguments)

    monkeypatch.setattr(import_module, "_put_run", collected_first)
    done = unpack(packed, tmp_path)
    assert len(list(StageStore(settings.store_url).iterate())) == done.new == 3
    assert not [path for path in done.folder.path.parent.iterdir() if path.name[0] == "."]


def test_a_different_run_is_not_replaced_and_differing_stages_are_reported(
    packed: Path, tmp_path: Path
) -> None:
    done = unpack(packed, tmp_path)
    store = StageStore(settings_in(tmp_path / "here").store_url)
    first, *_ = store.iterate()
    store.remove(first.key)
    with store.claim(first.key) as claim:
        (claim.workdir / "weights.bin").write_bytes(b"other")
        claim.commit(
            stage=first.stage,
            iteration=first.iteration,
            parameters=first.parameters,
            inputs=first.inputs,
            fingerprint=first.fingerprint,
        )
    assert unpack(packed, tmp_path).other_bytes == (first.key,)
    done.folder.update(created=1.0)
    with pytest.raises(RunStateError, match="is a different run"):
        unpack(packed, tmp_path)


def test_only_a_complete_run_that_has_ended_is_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    presence = RunLock(run.path)
    with pytest.raises(RunStateError, match="is running"):
        export_run("far", tmp_path / "x.zip", run.path.parent)
    presence.release()
    stages = (tmp_path / "home" / "store" / "stages").glob("*/state/weights.bin")
    weights = max(stages, key=lambda path: path.stat().st_size)  # not all are recorded in the run
    weights.chmod(0o644)
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(StoreError):
        export_run("far", tmp_path / "x.zip", run.path.parent)
    with pytest.raises(StoreError, match="ratchet resume far-1"):
        export_run("far", tmp_path / "x.zip", run.path.parent)
    assert not list(tmp_path.glob("*.zip*"))


def test_a_file_that_changes_during_an_export_leaves_no_archive(tmp_path: Path) -> None:
    from ratchet.store.manifest import FileEntry

    wrong = Member("a", b"content", FileEntry(size=7, sha256="0" * 64))
    with pytest.raises(StoreError, match="damaged"):
        write_archive(tmp_path / "x.zip", [wrong])
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_path_is_reported(packed: Path, tmp_path: Path) -> None:
    runs = tmp_path / "there" / "runs"
    with pytest.raises(StoreError, match=r"nowhere/x.zip cannot be written.*Name a file"):
        export_run("far", tmp_path / "nowhere" / "x.zip", runs)
    with pytest.raises(StoreError, match="there cannot be written"):
        export_run("far", tmp_path / "there", runs)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "runs").write_text("a file")
    with pytest.raises(StoreError, match=r"here/runs cannot be written.*--runs-dir"):
        unpack(packed, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"there", "here", "far.zip"}, "partial files are removed"


def test_the_commands_report_their_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path)
    monkeypatch.chdir(tmp_path)

    def ratchet(*arguments: str) -> Any:
        return CliRunner().invoke(app, list(arguments))

    exported = ratchet("export", "far")
    assert exported.exit_code == 0, exported.output
    assert "far-1.ratchet.zip: run far-1, 3 stages" in exported.output
    assert ratchet("export", "far").exit_code != 0, "it already exists"
    assert ratchet("export", "far", "--force").exit_code == 0
    imported = ratchet("import", "far-1.ratchet.zip", "--home", "h2", "--runs-dir", "r2")
    assert imported.exit_code == 0, imported.output
    assert "3 stages imported" in imported.output
    assert "2.7" in imported.output
    assert "ratchet verify far-1" in imported.output
    assert ratchet("import", "nothing.zip").exit_code != 0
    strange = ratchet("import", "far-1.ratchet.zip", "--runs-dir", "r3", "--base-dir", "nowhere")
    assert strange.exit_code != 0
    assert not Path("r3").exists()


def test_a_killed_export_leaves_a_file_that_gc_lists_and_the_next_export_removes(tmp_path):
    code = (
        "import sys, time; from pathlib import Path;"
        "from ratchet.store.archive import Member, write_archive;"
        "pause = lambda: (print('x', flush=True), time.sleep(60));"
        "write_archive(Path(sys.argv[1]), (Member('a', b'1') for _ in range(2) if pause()))"
    )
    run = make_run(tmp_path)
    path = tmp_path / "one.ratchet.zip"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    process.stdout.read(1)  # it is writing
    (partial,) = tmp_path.glob(".one.ratchet.zip.*.tmp")
    os.utime(partial, (1, 1))
    assert abandoned_archives(tmp_path) == []
    process.kill()
    process.wait()
    assert abandoned_archives(tmp_path) == [partial]
    settings = settings_in(tmp_path)
    store = StageStore(settings.store_url)
    limits = RetentionLimits()
    collector = GarbageCollector(store, Path(settings.home), [Path(settings.runs)], limits)
    assert str(partial) in [item.name for item in collector.plan().leftovers]
    export_run(run.run_id, path, settings.runs)
    assert not partial.exists()
    assert path.exists()


def test_a_killed_import_leaves_a_folder_that_gc_lists_unless_it_is_locked(tmp_path):
    run = make_run(tmp_path)
    settings = settings_in(tmp_path)
    scratch = run.path.parent / ".import-abc.tmp"
    scratch.mkdir()

    def listed() -> bool:
        os.utime(scratch, (time.time() - 90000, time.time() - 90000))
        store = StageStore(settings.store_url)
        folders = [Path(settings.runs)]
        collector = GarbageCollector(store, Path(settings.home), folders, RetentionLimits())
        return str(scratch) in [item.name for item in collector.plan().leftovers]

    lock = RunLock(scratch)
    assert not listed()
    lock.release()
    assert listed()
