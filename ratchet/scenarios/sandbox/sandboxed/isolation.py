"""Isolation of tested programs from files, network and other processes.

Linux only, without any privileges; each layer is tried, and the active ones are reported:

- seccomp (x86-64, AArch64): only system calls that affect no other process, see ``seccomp.py``.
- Landlock: no file can be written or run anywhere, only Python's own can be read.
- Namespaces (where the system allows them): no network device, no outside process visible.
- Capabilities are dropped; so is the user root, if other users may read Python's files.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
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


def leave_outside() -> tuple[list[str], bool]:
    """Leave the network, the namespace of processes and the user root, if allowed.

    Returns the namespaces that were left, and whether the process is not root now. With ``pid``,
    the next process that is forked is the new namespace's first: when it ends, the kernel ends
    all others in it.
    """
    namespaces = ["pid", "network", "ipc"]
    left = _unshare(namespaces) if os.geteuid() == 0 else []
    _become_nobody()
    unprivileged = os.geteuid() != 0
    if "pid" not in left:  # who owns a user namespace may make the others
        left += _unshare(["user", *(name for name in namespaces if name not in left)])
    return left, unprivileged


def _unshare(names: list[str]) -> list[str]:
    """Leave namespaces one by one, since a system may forbid only some of them."""
    if sys.platform != "linux":
        return []
    return [name for name in names if _libc.unshare(_NAMESPACES[name]) == 0]


def die_with_parent() -> None:
    """Be killed when the parent ends; a fork or a change of user takes that back."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


def drop_capabilities() -> None:
    """Drop the capabilities of root, or of the owner of a namespace."""
    number = _CAPSET.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        header = struct.pack("=II", 0x20080522, 0)  # version 3, this process
        _libc.syscall(number, header, bytes(24))
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _become_nobody() -> None:
    """Become an unprivileged user where root may read more than others."""
    if os.geteuid() != 0 or not _readable_to_others(os.__file__):
        return
    try:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    except OSError:
        pass  # a root that may not change its user; reported


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
    """Prepare rules: only Python's own files can be read, and no file written.

    Returns a descriptor for :func:`apply_landlock_rules` and the kernel's version of Landlock; (−1,
    0) without Landlock.
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
    """Apply prepared rules to this process, irrevocably."""
    if rules >= 0 and _libc.syscall(_RESTRICT_SELF, rules, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self failed")
