"""Videos of test episodes in the report: selection, outcomes and size limit."""

from __future__ import annotations

import base64

from ratchet.reports import build_report
from ratchet.reports.content import read_videos
from ratchet.tracking import ResultTable
from ratchet.tracking.mirrors.payload import run_files


def with_videos(run):
    columns = {
        "datapoint_id": list(range(11)),
        "rounds": [12, *[9] * 10],
        "terminated": [True] * 11,
        "reward.agent": [12.0, *[0.3333333] * 10],
    }
    run.write_table(ResultTable("test", columns, "main"))
    folder = run.videos_path / "main"
    folder.mkdir(parents=True)
    for episode in (0, 1, 10):
        (folder / f"test-{episode}.gif").write_bytes(b"GIF89a" + bytes([episode] * 94))
    return run


def test_the_page_contains_videos_with_their_outcomes(run):
    (run.videos_path).mkdir(exist_ok=True)
    assert 'id="episodes"' not in build_report(run).read_text()
    run = with_videos(run)
    (run.videos_path / "main" / "test-10.gif").unlink()
    first, second = read_videos([run])
    assert (first.test, first.episode, first.outcome) == ("test", 0, "12 steps, return 12")
    assert second.outcome == "9 steps, return 0.3333"
    page = build_report(run).read_text()
    for film in (run.videos_path / "main").iterdir():
        assert f"data:image/gif;base64,{base64.b64encode(film.read_bytes()).decode()}" in page


def test_videos_above_the_size_limit_are_listed_without_content(run):
    films = read_videos([with_videos(run)], limit=250)
    assert [film.episode for film in films] == [0, 1, 10]
    assert [bool(film.packed) for film in films] == [True, True, False]
    assert films[2].name == "videos/main/test-10.gif"


def test_videos_are_logged(run):
    files = run_files(with_videos(run), "main")
    logged = [path.name for path, folder in files.items() if folder == "videos"]
    assert logged == ["test-0.gif", "test-1.gif", "test-10.gif"]
