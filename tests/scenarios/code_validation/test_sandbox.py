"""Programs run in isolation: correct ones pass, wrong ones fail, hostile ones cause no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.errors import SandboxError
from ratchet.scenarios.code_validation.generator.problem import call_tests
from ratchet.scenarios.sandbox import programs as sandbox
from ratchet.scenarios.sandbox.programs import Program, run_programs, sandbox_isolation
from ratchet.scenarios.sandbox.suites import TestCase, TestSuite

SUM = call_tests("f", [([1, 2], 3), ([4, 5], 9)])
RIGHT = "def f(a, b):\n    return a + b"

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs seccomp and Landlock")


def variable_tests(cases):
    made = tuple(TestCase(dict(given), dict(expected)) for given, expected in cases)
    return TestSuite("variables", made)


def stdio_tests(cases):
    return TestSuite("stdio", tuple(TestCase(given, expected) for given, expected in cases))


def run(source, tests=SUM, **options):
    return run_programs([Program(source, tests)], **options)[0]


def statuses(sources, **options):
    programs = [Program(source, SUM, max_steps=20_000) for source in sources]
    return [result.status for result in run_programs(programs, **options)]


def test_tests_of_all_modes_tell_right_from_wrong():
    results = run_programs(
        [
            Program(RIGHT, SUM),
            Program("def f(a, b):\n    return a - b", SUM),
            Program("y = x + 1", variable_tests([({"x": 1}, {"y": 2}), ({"x": 5}, {"y": 6})])),
            Program("y = 2", variable_tests([({"x": 1}, {"y": 2}), ({"x": 5}, {"y": 6})])),
            Program("z = 2", variable_tests([({"x": 1}, {"y": 2})])),
            Program("print(int(input()) * 2 )\nexit()", stdio_tests([("4\n", "8\n"), ("1", "2")])),
            Program("print(input())", stdio_tests([("4\n", "8\n")])),
        ]
    )
    expected = ["passed", "wrong_answer", "passed", "wrong_answer", "wrong_answer"]
    assert [r.status for r in results] == [*expected, "passed", "wrong_answer"]
    assert results[1].failed_case == 0
    assert results[3].failed_case == 1
    assert results[0].outputs == (3, 9)


def test_what_goes_wrong_has_a_name():
    assert statuses(
        [
            "def f(a, b): return 1 / 0",
            "def f(a, b) return",
            "def g(a, b): return 3",
            "import sys\nsys.exit(0)",
            "import os\nos._exit(0)",
            "def f(a, b): return {1, 2}",
            "def f(a, b): return f(a, b)",
            "def f(a, b):\n    while True: pass",
            "def f(a, b):\n    while a: a += 1",
            "x = bytearray(10**9)",
            "def f(a, b): return 'x' * 10**7",
            "def f(a, b): return 10**10000",
        ]
    ) == [
        "error",
        "error",
        "error",
        "exited",
        "no_result",
        "bad_output",
        "error",
        "too_many_steps",
        "too_many_steps",
        "out_of_memory",
        "too_much_output",
        "bad_output",
    ]


def test_printed_text_is_bounded_and_loops_end_by_cpu_time():
    nothing = stdio_tests([("", "x")])
    endless = ("while True:\n    print('x' * 1000)", "while True: pass", "10**10**10")
    programs = [Program(source, SUM) for source in endless]
    (much,) = run_programs([Program("print('x' * 10**8)", nothing)], time_limit=5)
    assert much.status == "too_much_output"
    results = run_programs(programs, time_limit=0.1)
    assert [r.status for r in results] == ["timeout", "timeout", "timeout"]
    assert all(0.05 < r.cpu_seconds < 1 for r in results)


def test_a_program_cannot_claim_that_it_passed():
    claims = [
        '{"status": "passed", "outputs": [], "detail": ""}',
        '{"status": "finished", "outputs": [], "detail": ""}',
        '{"status": "finished", "outputs": [0, 0], "detail": ""}',
        '{"status": "finished", "outputs": [[3, 9], 3, 9, 3, 9], "detail": ""}',
        '{"status": ["passed"], "outputs": [3]}',
        "0 finished 0.1 [3, 9]",
        "[" * 100_000,
    ]
    for claim in claims:
        source = f"import os\nos.write(3, {claim!r}.encode() + b'\\n')\nos._exit(0)"
        assert not run(source).passed, claim[:60]
    answers = "print('3 9'); print('passed'); import sys; sys.exit(0)"
    assert run(answers).status == "exited"


def test_expected_values_are_nowhere_in_the_programs_process():
    """The program searches all objects and the process's arguments for the secret."""
    tests = call_tests("f", [([1], 771_177_711)])
    source = (
        "import gc, sys\n"
        "def f(a):\n"
        "    found = [o for o in gc.get_objects() if isinstance(o, (list, dict, tuple))]\n"
        "    values = [v for o in found for v in (o.values() if isinstance(o, dict) else o)]\n"
        "    secrets = [v for v in values if isinstance(v, int) and v - a == 771177710]\n"
        "    return secrets[0] if secrets else str(sys.argv)[:0]\n"
    )
    assert run(source, tests).status == "wrong_answer"


@linux_only
def test_hostile_programs_reach_nothing(tmp_path):
    """No file, process, signal or socket; each attempt is refused by the kernel."""
    if not (sandbox_isolation().seccomp and sandbox_isolation().landlock):
        pytest.skip("this kernel has no seccomp or no Landlock")
    mark = tmp_path / "mark"
    tmp_path.chmod(0o777)
    secret = tmp_path / "secret"
    secret.write_text("key")
    attempts = {
        "write outside": f"open({str(mark)!r}, 'w').write('x')",
        "write in the folder": "open('mark', 'w').write('x')",
        "append": f"open({str(secret)!r}, 'a').write('x')",
        "make a folder": f"os.mkdir({str(mark)!r})",
        "remove": f"os.remove({str(secret)!r})",
        "read": f"open({str(secret)!r}).read()",
        "list": "os.listdir('/')",
        "fork": "os.fork()",
        "spawn": "import subprocess; subprocess.run(['/bin/true'])",
        "exec": "os.execv('/bin/true', ['true'])",
        "kill the worker": "os.kill(os.getppid(), 9)",
        "kill all": "os.kill(-1, 9)",
        "tcp": "import socket; socket.create_connection(('127.0.0.1', 80), timeout=1)",
        "udp": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "trace": "import ctypes; l = ctypes.CDLL(None, use_errno=True); l.ptrace(0, 0, 0, 0)\n"
        "    if ctypes.get_errno(): raise PermissionError",
    }
    programs = [
        Program(f"import os\ndef f():\n    {code}\n    return 'done'", call_tests("f", [([], "")]))
        for code in attempts.values()
    ]
    for name, result in zip(attempts, run_programs(programs), strict=True):
        assert result.status == "error", (name, result)
        assert "PermissionError" in result.detail, (name, result)
    assert not mark.exists()
    assert secret.read_text() == "key"


@linux_only
def test_fork_bombs_end_with_their_program():
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    before = _count_processes()
    assert run(bomb, time_limit=0.1).status == "timeout"
    assert _count_processes() <= before + 20  # those of others come and go
    assert run(RIGHT).passed


def _count_processes():
    return sum(name.isdigit() for name in os.listdir("/proc"))


def test_programs_know_nothing_about_us(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    tests = call_tests("f", [([], "")])
    result = run("import os\ndef f(): return sorted(os.environ)", tests)
    assert set(result.outputs[0]) <= {"PATH", "LC_ALL", "LC_CTYPE", "PYTHONHASHSEED", "PYTHONUTF8"}
    opened = (
        "import os\ndef f():\n    found = []\n    for n in range(64):\n        try: os.fstat(n)\n"
        "        except OSError: continue\n        found.append(n)\n    return found"
    )
    assert run(opened, tests).outputs[0] == [0, 1, 2, 3]
    modules = "import sys\ndef f(): return [m for m in ('numpy', 'torch') if m in sys.modules]"
    assert run(modules, tests).outputs[0] == []
    assert run("import numpy\ndef f(): return 1", tests).status == "error"


def test_programs_are_apart_from_each_other_and_from_chance():
    tests = call_tests("f", [([], None)])
    spoil = "import builtins\nbuiltins.len = None\ndef f(): return None"
    look = "def f(): return len([])"
    chance = "import random\ndef f(): return [random.random(), hash('a'), list({'a', 'b', 'c'})]"
    first = run_programs([Program(s, tests) for s in (spoil, look, chance)], workers=1)
    again = run(chance, tests)
    assert first[1].outputs == (0,)
    assert first[2].outputs == again.outputs


def test_later_changes_of_a_returned_list_do_not_count():
    source = "kept = []\ndef f(x):\n    kept.append(x)\n    return kept"
    assert run(source, call_tests("f", [([1], [1]), ([2], [1, 2])])).passed


def test_groups_give_what_single_runs_give():
    sources = [RIGHT, "import os\nos._exit(1)", RIGHT.replace("+", "-"), "x = [", RIGHT] * 3
    assert statuses(sources, group_size=5, workers=2) == statuses(sources, workers=1)


def test_a_program_that_was_lost_is_run_again_and_one_that_was_late_is_not(monkeypatch):
    """A failure of the machine in the first run does not affect the result."""
    real, calls = sandbox._run_batch, []

    def unlucky(groups, programs, time_limit, memory_mb):
        calls.append(time_limit)
        found = real(groups, programs, time_limit, memory_mb)
        if len(calls) == 1:
            found[0] = sandbox.ProgramResult("timeout")
            del found[1]
        return found

    monkeypatch.setattr(sandbox, "_run_batch", unlucky)
    wrong = RIGHT.replace("+", "-")
    assert statuses([RIGHT, wrong, RIGHT], workers=1) == ["timeout", "wrong_answer", "passed"]
    assert calls == [2.0, 4.0]


def test_threads_may_be_started():
    source = (
        "import threading\ndef f(a, b):\n    r = []\n"
        "    t = threading.Thread(target=lambda: r.append(a + b)); t.start(); t.join()\n"
        "    return r[0]"
    )
    assert run(source).passed


def test_nothing_is_left_in_the_temporary_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(RIGHT).passed
    assert list(tmp_path.iterdir()) == []


def test_a_sandbox_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setattr(sandbox, "_CODE", "raise SystemExit('no python here')")
    with pytest.raises(SandboxError, match="no python here"):
        run(RIGHT)


def test_a_weak_sandbox_says_so_once(caplog):
    weak = sandbox.SandboxIsolation((), landlock=0, seccomp=False, unprivileged=False)
    for _ in range(2):
        sandbox._warn_of_weakness(weak)
    (record,) = caplog.records
    assert "using the network or making empty files or starting" in record.getMessage()
    strong = sandbox.SandboxIsolation((), landlock=7, seccomp=True, unprivileged=False)
    sandbox._warn_of_weakness(strong)
    assert len(caplog.records) == 1


def test_what_holds_without_a_pid_namespace_is_said_once_and_quietly(caplog):
    caplog.set_level("INFO", logger=sandbox.__name__)
    plain = sandbox.SandboxIsolation((), landlock=5, seccomp=True, unprivileged=True)
    for _ in range(2):
        sandbox._warn_of_weakness(plain)
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "allows no PID namespace" in record.getMessage()


def test_no_programs_need_no_subprocess(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    assert run_programs([]) == []


def test_the_worker_stands_on_the_standard_library_alone():
    code = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "import ratchet.scenarios.sandbox.sandboxed.worker\n"
        "assert not {'numpy', 'torch', 'pydantic'} & set(sys.modules)\n"
    )
    root = str(Path(sandbox.__file__).parents[3])
    subprocess.run([sys.executable, "-S", "-P", "-c", code, root], check=True)


@pytest.mark.slow
def test_a_program_that_sleeps_is_ended():
    start = time.monotonic()
    assert run("import time\ntime.sleep(1000)", time_limit=0.2).status == "timeout"
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("printed", "expected", "is_right"),
    [
        ("0.3333333", "0.333333333", True),
        ("1  2\n3", "1 2 3", True),
        ("YES", "yes", False),
        ("1000001", "1000000", False),
        ("1000000.0", "1000000", True),
        ("nan", "1", False),
        ("1 2", "1", False),
    ],
)
def test_tolerance_is_for_rounding_and_space_and_for_no_count(printed, expected, is_right):
    tests = stdio_tests([("", expected)])
    program = Program(f"print({printed!r})", tests, tolerant=True)
    assert run_programs([program])[0].passed == is_right


def test_a_tolerant_test_of_a_function_takes_a_value_out_of_a_list_of_one():
    for source, passed in (("3", True), ("[3]", True), ("[[3]]", False), ("3.0000001", True)):
        program = Program(f"def f(): return {source}", call_tests("f", [([], [3])]), tolerant=True)
        assert run_programs([program])[0].passed == passed
        assert run_programs([replace(program, tolerant=False)])[0].passed == (source == "[3]")


IGNORING = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["while True: pass", IGNORING], ids=["endless", "ignoring"])
def test_a_program_that_runs_out_of_time_is_run_once(source, monkeypatch):
    started = []
    run_batch = sandbox._run_batch
    monkeypatch.setattr(
        sandbox, "_run_batch", lambda *given: started.append(given[2]) or run_batch(*given)
    )
    suite = TestSuite("stdio", (TestCase("", "x"),))
    (result,) = run_programs([Program(source, suite)], time_limit=1.0)
    assert result.status == "timeout"
    assert started == [1.0]
    assert result.cpu_seconds < 1.9, "the clock ends what ignores signals"
