"""The report and the MLflow page of a run, opened in a real browser."""

import itertools
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from made_runs import make_sweep

from ratchet.reports import build_report
from ratchet.reports.comparison.comparing import compare_runs
from ratchet.reports.comparison.files import write_comparison
from ratchet.reports.sweep.page import make_sweep_page, write_sweep_page
from ratchet.tracking import MlflowMirror
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord, write_sweep

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="needs chromium and chromedriver",
    ),
]


def _complaints(browser):
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def _cells(browser, table):
    return [
        [cell.text for cell in row.find_elements("css selector", "td")]
        for row in browser.find_elements("css selector", f"#{table} tbody tr")
    ]


def _drawn(browser):
    """Return the numbers of visible plots and of those with lines or points, once drawn."""
    script = """
        const all = [...document.querySelectorAll('.plot')];
        const visible = all.filter(p => !p.closest('details:not([open])'));
        const marks = '.scatterlayer .trace path, .barlayer path';
        const full = visible.filter(p => p.querySelectorAll(marks).length);
        return [visible.length, full.length];
    """
    for _ in range(100):
        visible, full = browser.execute_script(script)
        if visible == full:
            break
        time.sleep(0.1)
    return [visible, full]


def _first(read, is_expected):
    """Return the first expected value, or the value after ten seconds."""
    for _ in range(100):
        value = read()
        if is_expected(value):
            break
        time.sleep(0.1)
    return value


@pytest.mark.slow
def test_the_report_draws_all_plots_and_shows_the_right_tables(run, browser):
    browser.get(build_report(run).as_uri())
    assert _drawn(browser) == [12, 12]
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert _drawn(browser) == [13, 13]
    assert _complaints(browser) == []
    table = next(t for t in run.read_tables() if (t.arm, t.name) == ("main", "test"))
    accuracy = 100 * sum(table.columns["correct"]) / len(table)
    first = _cells(browser, "accuracy-table")[0]
    assert first[0] == "main"
    assert first[1].startswith(f"{accuracy:.1f} % [")
    assert first[3:5] == ["test", "600"]
    assert first[-1] == "vanilla_ppo · nip"
    header = browser.find_elements("css selector", "#accuracy-table th")[-1]
    assert header.text == "Trainer and protocol"
    assert len(_cells(browser, "wl-table")) == 9
    assert _cells(browser, "stage-table")[2] == ["main", "train", "240", "15", "9", "2 min 29 s"]


@pytest.mark.slow
def test_the_report_has_a_dark_mode_and_fits_a_phone(run, browser):
    browser.get(build_report(run).as_uri())
    look = (
        "return [getComputedStyle(document.body).backgroundColor,"
        " document.querySelector('.scatterlayer .trace path').style.stroke]"
    )
    light = browser.execute_script(look)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    dark = _first(lambda: browser.execute_script(look), lambda dark: dark[1] != light[1])
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    width = "return document.documentElement.scrollWidth"
    assert _first(lambda: browser.execute_script(width), lambda width: width <= 390) <= 390
    edges = (
        "return [...document.querySelectorAll('#accuracy-table td:nth-child(2)')]"
        ".map(cell => cell.getBoundingClientRect().right)"
    )
    assert max(browser.execute_script(edges)) <= 390, (
        "the accuracy must be visible without scrolling"
    )
    assert browser.execute_script("return document.querySelector('h1').offsetTop") >= 20
    assert _complaints(browser) == []


@pytest.mark.slow
def test_a_long_legend_preserves_the_plots_height_and_hides_clicked_traces(run, browser):
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(build_report(run).as_uri())
    area = "return document.querySelector('#wl-test .gridlayer').getBoundingClientRect().height"
    assert browser.execute_script(area) > 190  # of 290; the rest is for the labels below
    drawn = "return document.querySelectorAll('#wl-test .scatterlayer .trace').length"
    assert browser.execute_script(drawn) == 3
    button = "document.querySelector('#wl-test').previousElementSibling.querySelector('button')"
    browser.execute_script(f"{button}.click()")
    assert _first(lambda: browser.execute_script(drawn), lambda count: count == 2) == 2
    browser.execute_script(f"{button}.click()")
    assert _first(lambda: browser.execute_script(drawn), lambda count: count == 3) == 3
    assert _complaints(browser) == []


def _serve_mlflow(port, folder, log):
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
        except OSError:
            assert server.poll() is None, "the server died"
            time.sleep(0.2)
        else:
            return server
    raise AssertionError("the server did not start")


@pytest.mark.slow
def test_the_mlflow_page_of_a_run_shows_its_metrics(run, browser, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (tmp_path / "server.log").open("wb") as log:
        server = _serve_mlflow(port, tmp_path, log)
        try:
            mirror = MlflowMirror(f"http://127.0.0.1:{port}")
            mirror.sync(run)
            url = run.manifest.tracking["url"]
            browser.get(url)
            deadline = time.monotonic() + 300
            text = ""
            while time.monotonic() < deadline and "final/test/accuracy" not in text:
                text = browser.find_element("css selector", "body").text
                time.sleep(0.3)
            assert "final/test/accuracy" in text
            assert "nip-1234abcd" in text
            page = build_report(run).read_text()
            assert f'href="{url}"' in page
        finally:
            server.terminate()
            server.wait(240)


@pytest.mark.slow
def test_pages_of_comparisons_and_sweeps_draw_all_plots_and_fit_a_phone(tmp_path, browser):
    runs = make_sweep(tmp_path, rights=((3, 5, 6, 7, 6), (8, 9, 9, 7, 8)))
    members = [
        SweepMemberRecord(run_id=folder.run_id, changes={"protocol": name, "seed": seed})
        for folder, (name, seed) in zip(
            runs, itertools.product(("adp", "nip"), range(5)), strict=True
        )
    ]
    write_sweep(tmp_path, SweepRecord(sweep_id="s", name="s", grid={}, members=members))
    comparison = write_comparison(compare_runs(runs), tmp_path / "s").page
    sweep = write_sweep_page(make_sweep_page(tmp_path, "s"), tmp_path / "s")
    # the figure and the profiles as pictures; coordinates, and importance as bars
    for page, plots, pictures in ((comparison, [0, 0], 2), (sweep, [2, 2], 0)):
        for width in (1280, 400):
            browser.set_window_size(width, 1000)
            browser.get(page.as_uri())
            assert _drawn(browser) == plots
            loaded = "return [...document.images].filter(image => image.naturalWidth).length"
            assert browser.execute_script(loaded) == pictures
            overflow = "return document.documentElement.scrollWidth > innerWidth"
            assert not browser.execute_script(overflow)
    assert _complaints(browser) == []
