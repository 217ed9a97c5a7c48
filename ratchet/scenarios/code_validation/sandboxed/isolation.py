"""Take from a process what a tested program must not have: files, network, other processes.

Linux only, without any privileges needed; each layer is tried, and what holds is reported:

- seccomp (x86-64, AArch64): no socket, no fork or exec, no signal to anybody, no tracing.
- Landlock: no file can be written or run anywhere, only Python's own can be read.
- Namespaces (where the system allows them): no network device, no process outside in sight.
- Capabilities are dropped; so is the user root, where others may read Python's files.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_PR_SET_PDEATHSIG, _PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 21, 22, 38
_NOBODY = 65534
_NAMESPACES = {
    "user": 0x10000000,
    "pid": 0x20000000,
    "network": 0x40000000,
    "ipc": 0x08000000,
}
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)


class _SockFilter(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _SockProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_SockFilter)))


def enter_namespaces() -> list[str]:
    """Leave the network, and the sight of other processes, where that is allowed.

    Returns what was left. With ``pid``, the next process that is forked is the new namespace's
    first: when it ends, the kernel ends all others in it.
    """
    wanted = ["pid", "network", "ipc"] if os.geteuid() == 0 else ["user", "pid", "network", "ipc"]
    flags = sum(_NAMESPACES[name] for name in wanted)
    if sys.platform != "linux" or _libc.unshare(flags) != 0:
        return []
    return wanted


def die_with_parent() -> None:
    """Be killed when the parent ends."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


def drop_privileges() -> bool:
    """Become an unprivileged user where root may read more than others; drop all capabilities.

    Returns whether the process is not root now.
    """
    if os.geteuid() == 0 and _readable_to_others(os.__file__):
        try:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        except OSError:
            pass  # a root without the right to become somebody else; said in the report
    number = _CAPSET.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        header = struct.pack("=II", 0x20080522, 0)  # version 3, this process
        _libc.syscall(number, header, bytes(24))
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return os.geteuid() != 0


def _readable_to_others(path: str) -> bool:
    path = os.path.realpath(path)
    if not os.stat(path).st_mode & 0o004:
        return False
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & 0o001:
            return False
    return True


# --- Landlock ---------------------------------------------------------------------------------

_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_READABLE = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/dev/null", "/dev/urandom")


def make_landlock_rules() -> tuple[int, int]:
    """Prepare rules: Python's own files can be read, nothing else, and nothing written.

    Returns a descriptor for :func:`apply_landlock_rules` and the kernel's version of Landlock;
    (−1, 0) where there is none.
    """
    version = _libc.syscall(_CREATE_RULESET, None, 0, 1) if sys.platform == "linux" else -1
    if version < 1:
        return -1, 0
    files = (1 << (13 if version == 1 else 14 if version == 2 else 15 if version < 5 else 16)) - 1
    network = 0b11 if version >= 4 else 0
    scoped = 0b11 if version >= 6 else 0  # abstract sockets and signals
    attributes = struct.pack("=QQQ", files, network, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _libc.syscall(_CREATE_RULESET, attributes, size, 0)
    if rules < 0:
        return -1, 0
    for path in {*_READABLE, os.path.realpath(sys.base_prefix)}:
        if os.path.exists(path):
            _allow_reading(rules, path)
    return int(rules), int(version)


def _allow_reading(rules: int, path: str) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rights = _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE
    _libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", rights, descriptor), 0)
    os.close(descriptor)


def apply_landlock_rules(rules: int) -> None:
    """Bind this process to prepared rules, for good."""
    if rules >= 0 and _libc.syscall(_RESTRICT_SELF, rules, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self failed")


# --- seccomp ----------------------------------------------------------------------------------

_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
}
"""System calls that no tested program needs: the numbers on x86-64 and AArch64."""
_COLUMN = {"x86_64": 0, "aarch64": 1}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3, _CLONE_THREAD = 435, 0x10000
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


def make_seccomp_filter() -> _SockProgram | None:
    """Prepare the filter for this machine's system calls; None where there is none.

    Threads may be started, processes may not.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _COLUMN or sys.maxsize < 2**32:
        return None
    if _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return None
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _EPERM),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, 0x40000000),  # the numbers of the x32 interface
        (_RETURN, 0, 0, _EPERM),
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ENOSYS),  # so that the C library falls back to clone
        (_EQUAL, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, 16),
        (_HAS_BITS, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    numbers = [numbers[_COLUMN[machine]] for numbers in _FORBIDDEN.values()]
    for number in (number for number in numbers if number is not None):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    code.append((_RETURN, 0, 0, _ALLOW))
    array = (_SockFilter * len(code))(*(_SockFilter(*step) for step in code))
    return _SockProgram(len(code), ctypes.cast(array, ctypes.POINTER(_SockFilter)))


def apply_seccomp_filter(program: _SockProgram | None) -> bool:
    """Bind this process to a prepared filter, for good; say whether it holds."""
    if program is None:
        return False
    return bool(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0)
