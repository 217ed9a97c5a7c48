"""Environment of all tests: one thread, no network, no files outside a temporary folder.

The environment is set while this file is imported, before any library reads it.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

_SANDBOX = Path(tempfile.mkdtemp(prefix="ratchet-tests-"))
_CACHE = Path(os.environ.setdefault("XDG_CACHE_HOME_OF_TESTS", str(_SANDBOX / "cache")))
"""Workers inherit the variable, and share databases, base models and facts about sources."""
_DAY = int(os.environ.setdefault("RATCHET_TESTS_DAY", str(int(time.time() // 86400))))
"""Chooses the cases of tests marked ``in_turn``; workers inherit the variable."""
_SERVER_TESTS = ("tests/flows/", "tests/deployments/")
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "DO_NOT_TRACK": "1",
    "PREFECT_HOME": str(_SANDBOX / "prefect"),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "60",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "RATCHET_SERVER_IDLE_SECONDS": "20",  # the runs that a worker starts share a server
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "HYPOTHESIS_STORAGE_DIRECTORY": str(_SANDBOX / "hypothesis"),
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "XDG_CACHE_HOME": str(_CACHE),
}
_FOREIGN = (
    "MLFLOW_TRACKING_URI",
    "PREFECT_API_URL",
    "PREFECT_API_KEY",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "RATCHET_LOG",
)

_CHROMIUM = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,2000",
]

os.environ.update(_ENVIRONMENT)
for _name in _FOREIGN:
    os.environ.pop(_name, None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in a shell's background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # for processes of tests

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

gc.disable()  # modules imported during collection are never freed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as exhaustive whose turn is on another day.

    Of tests marked ``in_turn`` some cases run; of the other slow tests of flows and deployments,
    which start servers, those of a third of the files.
    """
    groups: dict[tuple[object, ...], dict[object, list[pytest.Item]]]
    groups = defaultdict(lambda: defaultdict(list))
    for item in items:
        if item.get_closest_marker("exhaustive") is not None:
            continue
        marker, is_slow = item.get_closest_marker("in_turn"), item.get_closest_marker("slow")
        if marker is not None:
            test = marker.kwargs.get("of", (item.path, getattr(item, "originalname", item.name)))
            groups[test, marker.args[0], is_slow is None][item.nodeid].append(item)
        elif is_slow and item.nodeid.startswith(_SERVER_TESTS):
            groups["files", None][item.path].append(item)
    for (_, count, *_), parts in groups.items():
        size = -(-len(parts) // 3) if count is None else count
        for place, cases in enumerate(parts.values()):
            if (place - _DAY * size) % len(parts) >= size:
                for case in cases:
                    case.add_marker(pytest.mark.exhaustive)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported modules from garbage collection; collect only objects of tests."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder that the libraries wrote to."""
    shutil.rmtree(_SANDBOX, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report skipped tests as failed if the browser or PostgreSQL they need is required."""
    report = yield
    for marker in ("browser", "postgres"):
        required = f"RATCHET_REQUIRE_{marker.upper()}"
        is_required = os.environ.get(required) == "1" and item.get_closest_marker(marker)
        if is_required and report.skipped:
            report.outcome = "failed"
            report.longrepr = f"{required}=1, but skipped: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Limit torch to one thread if a test module has imported it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def install(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Path]]:
    """Install a package that offers one class as an entry point."""
    from ratchet.registry import installed_in

    folder = tmp_path_factory.mktemp("site")
    monkeypatch.syspath_prepend(folder)
    installed: list[str] = []

    def install(
        package: str, kinds: str, name: str, class_name: str, source: str, *, version: str = "1.2"
    ) -> Path:
        (folder / f"{package}.py").write_text(source)
        facts = folder / f"{package}-{version}.dist-info"
        facts.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        (facts / "METADATA").write_text(metadata)
        points = f"[ratchet.{kinds}]\n{name} = {package}:{class_name}\n"
        (facts / "entry_points.txt").write_text(points)
        installed.append(package)
        installed_in.cache_clear()
        return folder / f"{package}.py"

    yield install
    installed_in.cache_clear()
    for package in installed:
        sys.modules.pop(package, None)


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """Start a temporary Prefect server once per session (it takes seconds to start)."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Start headless Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in [*_CHROMIUM, f"--user-data-dir={tmp_path / 'profile'}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()
