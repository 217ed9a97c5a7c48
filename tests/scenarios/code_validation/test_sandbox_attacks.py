"""Attacks of hostile programs on their machine, which remains unchanged."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratchet.scenarios.code_validation.generator.problem import call_tests
from ratchet.scenarios.sandbox import programs as sandbox
from ratchet.scenarios.sandbox.programs import Program, run_programs, sandbox_isolation
from ratchet.scenarios.sandbox.sandboxed.seccomp import make_seccomp_filter

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or make_seccomp_filter() is None, reason="needs seccomp"
)
_SANDBOXED = "ratchet.scenarios.sandbox.sandboxed"
_NOBODY = 65534


def start_with(monkeypatch, code):
    """Let every sandboxed process run some code before it starts."""
    changed = sandbox._CODE.replace("main()", f"{code}; main()")
    monkeypatch.setattr(sandbox, "_CODE", changed)


@pytest.fixture(params=["with namespaces", "without namespaces"])
def namespaces(request, monkeypatch):
    """Attack also where the system allows no namespaces."""
    if request.param == "without namespaces":
        without_namespaces(monkeypatch)


def without_namespaces(monkeypatch):
    start_with(monkeypatch, f"import {_SANDBOXED}.isolation as i; i._unshare = lambda names: []")


@pytest.fixture
def host_file():
    """Make a file in a folder, both of the user that programs run as."""
    folder = Path(tempfile.mkdtemp())
    file = folder / "file"
    file.write_text("mine")
    if os.geteuid() == 0 and sandbox_isolation().unprivileged:
        for path in (folder, file):
            os.chown(path, _NOBODY, _NOBODY)
    yield file
    shutil.rmtree(folder)


@contextmanager
def neighbour():
    """Start a process that is none of the sandbox's."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process.pid
        assert process.poll() is None
    finally:
        process.communicate(b"\n")


def attack(attempts, names):
    """Return the outcome of each attempt, a line of code that may use names."""
    setup = (
        "import ctypes, fcntl, mmap, os, resource, signal, socket, time\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(number, *arguments):\n"
        "    made = libc.syscall(number, *arguments)\n"
        "    if made < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\n"
        + "".join(f"{name} = {value!r}\n" for name, value in names.items())
    )
    tests = call_tests("f", [([], "")])
    programs = [
        Program(f"{setup}def f():\n    {code}\n    return 'done'", tests) for code in attempts
    ]
    return run_programs(programs)


def assert_refused(attempts, names):
    for code, result in zip(attempts, attack(attempts, names), strict=True):
        refused = ("PermissionError", "not implemented")  # as an older kernel says
        assert result.status == "error", (code, result)
        assert any(reason in result.detail for reason in refused), (code, result)


def raw(x86_64, aarch64, arguments):
    """Write a system call that Python has no function for."""
    return f"call({x86_64 if platform.machine() == 'x86_64' else aarch64}, {arguments})"


def test_no_file_of_the_host_is_changed(namespaces, host_file):
    def look():
        stat = host_file.stat()
        return stat.st_mode, stat.st_uid, stat.st_mtime_ns, stat.st_ctime_ns, os.listxattr(file)

    file = str(host_file)
    before, entries = look(), os.listdir(host_file.parent)
    attempts = [
        "os.chmod(file, 0o777)",
        "os.chmod(file, 0o777, follow_symlinks=False)",
        "os.fchmod(os.open(library, os.O_RDONLY), 0o755)",
        raw(452, 452, "-100, file.encode(), 0o777, 0"),  # fchmodat2
        "os.chown(file, -1, -1)",
        "os.lchown(file, -1, -1)",
        "os.fchown(os.open(library, os.O_RDONLY), -1, -1)",
        "os.utime(file, (1, 1))",
        "os.utime(file, ns=(1, 1), follow_symlinks=False)",
        "os.utime(os.open(library, os.O_RDONLY))",
        "os.setxattr(file, 'user.mark', b'x')",
        "os.removexattr(file, 'user.mark')",
        raw(463, 463, "-100, file.encode(), 0, b'user.mark', 0, 0"),  # setxattrat
        raw(466, 466, "-100, file.encode(), 0, b'user.mark'"),  # removexattrat
        "fcntl.flock(os.open(library, os.O_RDONLY), fcntl.LOCK_EX)",
        "fcntl.fcntl(os.open(library, os.O_RDONLY), 1024, 0)",  # a lease
        "fcntl.ioctl(os.open(library, os.O_RDONLY), 0x40086602, bytes(8))",  # flags
        "os.truncate(file, 0)",
        "os.rename(file, file + '2')",
        "os.symlink(file, file + '2')",
        "os.link(file, file + '2')",
        "os.mkfifo(file + '2')",
        "os.open(file, os.O_PATH | os.O_CREAT)",
        "os.open(os.path.dirname(file), os.O_TMPFILE | os.O_RDWR)",
        "open('/proc/self/oom_score_adj', 'w')",
    ]
    assert_refused(attempts, {"file": file, "library": os.__file__})
    assert look() == before
    assert os.listdir(host_file.parent) == entries
    assert host_file.read_text() == "mine"


def test_no_process_of_the_host_is_changed(namespaces):
    def look(pid):
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        policy, cpus = os.sched_getscheduler(pid), os.sched_getaffinity(pid)
        return os.getpriority(os.PRIO_PROCESS, pid), policy, cpus, limits

    attempts = [
        attempt.format(target=target)
        for target in ("pid", "os.getppid()")
        for attempt in (
            "os.setpriority(os.PRIO_PROCESS, {target}, 7)",
            "os.sched_setaffinity({target}, [0])",
            "os.sched_setscheduler({target}, os.SCHED_BATCH, os.sched_param(0))",
            "os.sched_setparam({target}, os.sched_param(0))",
            raw(314, 274, "{target}, bytes(48), 0"),  # sched_setattr
            raw(251, 30, "1, {target}, 3 << 13"),  # ioprio_set
            "resource.prlimit({target}, resource.RLIMIT_NOFILE, (9, 9))",
            "resource.prlimit({target}, resource.RLIMIT_NOFILE)",
            "os.kill({target}, signal.SIGTERM)",
            "os.kill(-{target}, signal.SIGTERM)",
            "os.pidfd_open({target})",
            raw(234, 131, "{target}, {target}, 15"),  # tgkill
            raw(311, 271, "{target}, 0, 0, 0, 0, 0"),  # process_vm_writev
            raw(101, 117, "16, {target}, 0, 0"),  # ptrace, attach
            "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {target})",
            "fcntl.ioctl(socket.socketpair()[0], 0x8901, ctypes.c_int({target}))",
        )
    ]
    attempts += [
        "os.setpriority(os.PRIO_USER, 0, 7)",
        "os.setpgid(0, 0)",
        "os.setsid()",
        "os.kill(-1, signal.SIGTERM)",
    ]
    with neighbour() as pid:
        before = look(pid)
        assert_refused(attempts, {"pid": pid})
        assert look(pid) == before


def test_nothing_reaches_out_or_stays_behind(namespaces):
    """No socket has a destination; no memory outlives or evades the limits."""
    attempts = [
        *(f"socket.socket({family}, socket.SOCK_RAW)" for family in (1, 2, 10, 16, 17, 38, 40)),
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '/run/log')",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', b'\\0abstract')",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].connect('/run/log')",
        "socket.socketpair()[0].sendmsg([b'x'])",
        "os.memfd_create('x')",
        raw(29, 194, "0, 4096, 0o1600"),  # shmget
        raw(68, 186, "0, 0o1600"),  # msgget
        raw(240, 180, "b'x', 0o102, 0o600, 0"),  # mq_open
        raw(248, 217, "b'user', b'x', b'x', 1, -3"),  # add_key
        raw(253, 26, "0"),  # inotify_init
        raw(425, 425, "8, bytes(120)"),  # io_uring_setup
        raw(323, 282, "1"),  # userfaultfd
        raw(321, 280, "0, bytes(72), 72"),  # bpf
        raw(435, 435, "bytes(88), 88"),  # clone3
        raw(306, 267, "os.open(library, os.O_RDONLY)"),  # syncfs
        raw(157, 167, "1, 0, 0, 0, 0"),  # prctl: live on without the parent
        "os.memfd_create('x'); os.execve(3, ['x'], {})",
    ]
    assert_refused(attempts, {"library": os.__file__})


def run_within(seconds, source, **options):
    start = time.monotonic()
    (result,) = run_programs([Program(source, call_tests("f", [([], "")]))], **options)
    assert time.monotonic() - start < seconds
    return result.status


def short_deadline(monkeypatch):
    start_with(monkeypatch, f"import {_SANDBOXED}.worker as w; w._WALL_FACTOR = 2")


@pytest.mark.slow
def test_a_drip_of_results_ends_in_time(monkeypatch):
    """One byte at a time: it is never idle for long, and needs hardly any CPU time."""
    short_deadline(monkeypatch)
    drip = "import os, time\nwhile True:\n    os.write(3, b'x')\n    time.sleep(0.02)"
    assert run_within(30, drip, time_limit=0.1) == "timeout"


@pytest.mark.slow
def test_a_program_that_works_and_waits_in_turns_ends_at_the_deadline(monkeypatch):
    short_deadline(monkeypatch)
    source = (
        "import os, time\nwhile True:\n"
        "    start = time.process_time()\n"
        "    while time.process_time() < start + 0.004: pass\n"
        "    os.write(3, b'x')\n    time.sleep(0.2)"
    )
    assert run_within(30, source, time_limit=0.5) == "timeout"


def test_a_flood_of_results_is_cut_off():
    flood = "import os\nwhile True: os.write(3, bytes(65536))"
    assert run_within(30, flood, time_limit=1.0) == "too_much_output"


def test_threads_are_bounded_beside_what_memory_allows():
    source = "import resource\ndef f(): return resource.getrlimit(resource.RLIMIT_NPROC)"
    (result,) = run_programs([Program(source, call_tests("f", [([], "")]))])
    assert max(result.outputs[0]) <= 4096
    assert min(result.outputs[0]) >= 0


def test_a_namespace_that_is_forbidden_keeps_nobody_from_the_others(monkeypatch):
    held = set(sandbox_isolation().namespaces)
    start_with(monkeypatch, f"import {_SANDBOXED}.isolation as i; i._NAMESPACES['network'] = -1")
    with sandbox.SandboxProcess(1.0, 256, []) as worker:
        assert set(worker.isolation.namespaces) == held - {"network"}


@pytest.mark.slow
def test_a_program_ends_with_its_worker(monkeypatch):
    """Also without a separate namespace, and in a separate process group."""
    without_namespaces(monkeypatch)
    job = {
        "index": 0,
        "source": "import time\ntime.sleep(60)",
        "mode": "call",
        "entry": "f",
        "givens": [],
        "wanted": [],
        "max_steps": None,
    }
    with sandbox.SandboxProcess(60.0, 256, [[job]]) as worker:
        pid = worker._process.pid
        (program,) = wait_for(lambda: children_of(pid))
        time.sleep(0.3)  # until it sleeps
        worker._process.kill()
        wait_for(lambda: not Path(f"/proc/{program}").exists())


def wait_for(condition):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come")


def children_of(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has ended
        if int(parent) == pid:
            found.append(int(stat.parent.name))
    return found


def test_programs_that_mean_no_harm_do_not_notice(namespaces):
    imports = (
        "array, base64, bisect, bz2, calendar, collections, concurrent.futures, copy, csv, ctypes,"
        " dataclasses, datetime, decimal, doctest, enum, fractions, functools, glob, hashlib,"
        " heapq, html, inspect, io, itertools, json, logging, lzma, math, multiprocessing,"
        " operator, pathlib, pickle, platform, queue, random, re, secrets, selectors, shutil,"
        " sqlite3, statistics, string, struct, tempfile, textwrap, threading, timeit,"
        " tracemalloc, typing, unittest, urllib.parse, uuid, xml.etree.ElementTree, zlib, zoneinfo"
    )
    sources = [
        f"import {imports}\n    return int(bool(uuid.uuid4()) and bool(platform.platform()))",
        "import asyncio\n    return asyncio.run(asyncio.sleep(0.01, 1))",
        "import asyncio\n    return asyncio.run(asyncio.to_thread(lambda: 1))",
        "import socket\n    a, b = socket.socketpair(); a.send(b'1'); return int(b.recv(1))",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "    with ThreadPoolExecutor(4) as pool: return sum(pool.map(int, '10'))",
        "import signal, time\n"
        "    def late(*_): raise TimeoutError\n"
        "    signal.signal(signal.SIGALRM, late); signal.setitimer(signal.ITIMER_REAL, 0.05)\n"
        "    try: time.sleep(1)\n    except TimeoutError: return 1",
        "import sqlite3\n    return sqlite3.connect(':memory:').execute('select 1').fetchone()[0]",
        "import mmap\n    memory = mmap.mmap(-1, 4096); memory[0] = 1; return memory[0]",
        "import resource, sys, threading\n"
        "    _, most = resource.getrlimit(resource.RLIMIT_STACK)\n"
        "    resource.setrlimit(resource.RLIMIT_STACK, (2**26, most))\n"
        "    sys.setrecursionlimit(10**5); threading.stack_size(2**26); found = []\n"
        "    def depth(n): return n and depth(n - 1) or 1\n"
        "    t = threading.Thread(target=lambda: found.append(depth(20_000)))\n"
        "    t.start(); t.join(); return found[0]",
        "import os\n    return int(os.cpu_count() > 0 and bool(os.getcwd()))",
        "import os\n    return int(len(open(os.__file__).read()) > 0 and os.path.isdir('/'))",
        "import traceback\n    try: 1 / 0\n"
        "    except ArithmeticError: return int(bool(traceback.format_exc()))",
        "import os\n    a, b = os.pipe(); os.write(b, b'1'); os.set_blocking(a, False)\n"
        "    return int(os.read(a, 1))",
    ]
    tests = call_tests("f", [([], 1)])
    results = run_programs([Program(f"def f():\n    {source}", tests) for source in sources])
    for source, result in zip(sources, results, strict=True):
        assert result.passed, (source, result)
