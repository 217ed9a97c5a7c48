"""Restrict a process to the few system calls that a tested program may need.

Unlisted calls are refused, including those of later kernels: changes of files, their modes, owners,
times and attributes; signals, priorities and limits of others; new processes; sockets with a
destination; memory that outlives the program. Some calls are allowed with harmless arguments only.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
from collections.abc import Mapping
from typing import TypeAlias

_PR_SET_SECCOMP, _FILTER = 22, 2

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


Step: TypeAlias = "tuple[int, int, int, int]"
"""An instruction of the filter: code, jump if true, jump if false, operand."""

_COLUMN = {"x86_64": 0, "aarch64": 1}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_X32 = 0x40000000
_NEWER = 435
"""From here on what is not named looks unknown, as on an older kernel: the C library falls back."""

# --- Which calls ------------------------------------------------------------------------------

_Numbers: TypeAlias = "tuple[int | None, int | None]"
_ALLOWED: Mapping[str, _Numbers] = {
    "read": (0, 63),
    "readv": (19, 65),
    "pread64": (17, 67),
    "preadv": (295, 69),
    "write": (1, 64),
    "writev": (20, 66),
    "pwrite64": (18, 68),
    "lseek": (8, 62),
    "close": (3, 57),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "stat": (4, None),
    "lstat": (6, None),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
    "recvfrom": (45, 207),
    "shutdown": (48, 210),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
    "getsockopt": (55, 209),
    "brk": (12, 214),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "futex": (202, 98),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "restart_syscall": (219, 128),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "pause": (34, None),
    "alarm": (37, None),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrusage": (98, 165),
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "getpgid": (121, 155),
    "getpgrp": (111, None),
    "getsid": (124, 156),
    "getrlimit": (97, 163),
    "setrlimit": (160, 164),
    "getpriority": (140, 141),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getcpu": (309, 168),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "umask": (95, 166),
}
"""System calls that affect no other process: the numbers on x86-64 and AArch64."""


def _load(argument: int, *, high: bool = False) -> Step:
    return (_LOAD, 0, 0, 16 + 8 * argument + 4 * high)


_PASS: Step = (_RETURN, 0, 0, _ALLOW)
_DENY: Step = (_RETURN, 0, 0, _REFUSE | errno.EPERM)


def _one_of(argument: int, *values: int) -> list[Step]:
    tests = [step for value in values for step in ((_EQUAL, 0, 1, value), _PASS)]
    return [_load(argument), *tests, _DENY]


def _without(argument: int, bits: int) -> list[Step]:
    return [_load(argument), (_HAS_BITS, 0, 1, bits), _DENY, _PASS]


def _with(argument: int, bits: int) -> list[Step]:
    return [_load(argument), (_HAS_BITS, 0, 1, bits), _PASS, _DENY]


def _null(argument: int) -> list[Step]:
    high = _load(argument, high=True)
    return [_load(argument), (_EQUAL, 0, 2, 0), high, (_EQUAL, 1, 0, 0), _DENY, _PASS]


_THREAD = 0x10000
_CHANGING = 0o3 | 0o100 | 0o1000 | 0o20000000  # write, O_CREAT, O_TRUNC, O_TMPFILE
_ITSELF, _UNIX = 0, 1
_DUPLICATE_AND_FLAGS = (0, 1, 2, 3, 4, 1030)  # no owner for signals, lock, lease or pipe's size
_ASK_OR_BLOCK = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_NAMES = (15, 16, 0x53564D41)  # of threads and memory

_CONDITIONED: Mapping[str, tuple[_Numbers, list[Step]]] = {
    "clone": ((56, 220), _with(0, _THREAD)),
    "open": ((2, None), _without(1, _CHANGING)),
    "openat": ((257, 56), _without(2, _CHANGING)),
    "prlimit64": ((302, 261), _one_of(0, _ITSELF)),
    "fcntl": ((72, 25), _one_of(1, *_DUPLICATE_AND_FLAGS)),
    "ioctl": ((16, 29), _one_of(1, *_ASK_OR_BLOCK)),
    "prctl": ((157, 167), _one_of(0, *_NAMES)),
    "socketpair": ((53, 199), _one_of(0, _UNIX)),
    "sendto": ((44, 206), _null(4)),
}
"""System calls that are allowed with some arguments."""

# --- The filter -------------------------------------------------------------------------------


def filter_steps(machine: str) -> list[Step]:
    """Return the filter's instructions for a supported machine."""
    column = _COLUMN[machine]
    steps: list[Step] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        _DENY,
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        _DENY,
    ]
    for numbers in _ALLOWED.values():
        number = numbers[column]
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), _PASS]
    for numbers, condition in _CONDITIONED.values():
        number = numbers[column]
        if number is not None:
            steps += [(_EQUAL, 0, len(condition), number), *condition]
    unknown: Step = (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)
    return [*steps, (_AT_LEAST, 0, 1, _NEWER), unknown, _DENY]


def make_seccomp_filter() -> _SockProgram | None:
    """Prepare the filter for this machine's system calls; None where there can be none."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _COLUMN or sys.maxsize < 2**32:
        return None
    _libc.prctl(_PR_SET_SECCOMP, _FILTER, None, 0, 0)
    if ctypes.get_errno() != errno.EFAULT:  # the kernel knows filters, and missed one
        return None
    steps = filter_steps(machine)
    array = (_SockFilter * len(steps))(*(_SockFilter(*step) for step in steps))
    return _SockProgram(len(steps), ctypes.cast(array, ctypes.POINTER(_SockFilter)))


def apply_seccomp_filter(program: _SockProgram) -> None:
    """Apply a prepared filter to this process, irrevocably."""
    if _libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the seccomp filter was refused")
