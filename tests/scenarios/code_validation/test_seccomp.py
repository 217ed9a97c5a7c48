"""The filter of system calls, interpreted in Python: its verdicts on both architectures."""

from __future__ import annotations

import errno

import pytest

from ratchet.scenarios.sandbox.sandboxed.seccomp import filter_steps

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED = 0x7FFF0000
REFUSED = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS
WRITE_ONLY, CREATE, TEMPORARY, CLOEXEC = 0o1, 0o100, 0o20000000, 0o2000000


def verdict(machine, number, *arguments, architecture=None):
    """Run the filter's instructions as the kernel does, on one call's data."""
    words = {0: number, 4: architecture or ARCHITECTURES[machine]}
    for index, argument in enumerate((*arguments, 0, 0, 0, 0, 0, 0)[:6]):
        words[16 + 8 * index] = argument % 2**32
        words[20 + 8 * index] = argument // 2**32
    steps = filter_steps(machine)
    at = accumulator = 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            accumulator = words[operand]
            continue
        holds = {
            0x15: accumulator == operand,
            0x35: accumulator >= operand,
            0x45: bool(accumulator & operand),
        }[code]
        at += if_true if holds else if_false


# The kernel's numbers: name, x86-64, AArch64.
CHANGES = """
    open_by_handle_at 304 265 | creat 85 - | truncate 76 45 | ftruncate 77 46 | fallocate 285 47
    chmod 90 - | fchmod 91 52 | fchmodat 268 53 | chown 92 - | fchown 93 55 | lchown 94 -
    fchownat 260 54 | utime 132 - | utimes 235 - | futimesat 261 - | utimensat 280 88
    setxattr 188 5 | lsetxattr 189 6 | fsetxattr 190 7 | removexattr 197 14 | lremovexattr 198 15
    fremovexattr 199 16 | rename 82 - | renameat 264 38 | renameat2 316 276 | unlink 87 -
    unlinkat 263 35 | mkdir 83 - | mkdirat 258 34 | rmdir 84 - | link 86 - | linkat 265 37
    symlink 88 - | symlinkat 266 36 | mknod 133 - | mknodat 259 33 | flock 73 32 | mount 165 40
    sync 162 81 | syncfs 306 267 | memfd_create 319 279 | chroot 161 51 | pivot_root 155 41
    shmget 29 194 | shmat 30 196 | msgget 68 186 | semget 64 190 | mq_open 240 180
    add_key 248 217 | keyctl 250 219 | quotactl 179 60 | swapon 167 224
"""
OTHERS = """
    setpriority 141 140 | sched_setparam 142 118 | sched_setscheduler 144 119
    sched_setaffinity 203 122 | sched_setattr 314 274 | ioprio_set 251 30 | kill 62 129
    tkill 200 130 | tgkill 234 131 | rt_sigqueueinfo 129 138 | rt_tgsigqueueinfo 297 240
    pidfd_send_signal 424 424 | pidfd_open 434 434 | ptrace 101 117 | process_vm_readv 310 270
    process_vm_writev 311 271 | kcmp 312 272 | move_pages 279 239 | migrate_pages 256 238
    fork 57 - | vfork 58 - | execve 59 221 | execveat 322 281 | unshare 272 97 | setns 308 268
    setpgid 109 154 | setsid 112 157 | socket 41 198 | connect 42 203 | bind 49 200
    sendmsg 46 211 | sendmmsg 307 269 | accept 43 202 | perf_event_open 298 241 | bpf 321 280
    userfaultfd 323 282 | io_uring_setup 425 425 | inotify_add_watch 254 27 | syslog 103 116
    personality 135 92 | seccomp 317 277 | timer_create 222 107 | reboot 169 142
"""
NEWER = """
    clone3 435 435 | openat2 437 437 | pidfd_getfd 438 438 | process_madvise 440 440
    mount_setattr 442 442 | process_mrelease 448 448 | fchmodat2 452 452 | setxattrat 463 463
    removexattrat 466 466 | file_setattr 469 469 | none_yet 600 600
"""


def numbers(table, machine):
    column = 1 if machine == "x86_64" else 2
    rows = [row.split() for row in table.replace("\n", "|").split("|") if row.strip()]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_that_reach_others_are_refused_with_any_arguments(machine):
    for name, number in numbers(CHANGES + OTHERS, machine).items():
        assert verdict(machine, number) == REFUSED, name
        assert verdict(machine, number, *[2**64 - 1] * 6) == REFUSED, name


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_newer_calls_look_unknown(machine):
    for name, number in numbers(NEWER, machine).items():
        assert verdict(machine, number) == UNKNOWN, name


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_every_program_needs_is_allowed(machine):
    table = """
        read 0 63 | write 1 64 | close 3 57 | mmap 9 222 | munmap 11 215 | brk 12 214 | futex 202 98
        exit_group 231 94 | rt_sigreturn 15 139 | clock_gettime 228 113 | getrandom 318 278
        newfstatat 262 79 | getdents64 217 61 | rseq 334 293 | set_robust_list 273 99
        clock_nanosleep 230 115 | setitimer 38 103 | epoll_ctl 233 21 | statx 332 291
    """
    for name, number in numbers(table, machine).items():
        assert verdict(machine, number) == ALLOWED, name


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_some_calls_are_allowed_with_harmless_arguments_only(machine):
    table = """
        clone 56 220 | openat 257 56 | prlimit64 302 261 | fcntl 72 25 | ioctl 16 29 | prctl 157 167
        socketpair 53 199 | sendto 44 206
    """
    calls = numbers(table, machine)
    thread, process = 0x3D0F00, 0x1200011
    own_file, set_owner, set_lease = (3, 2), (3, 8, 1), (3, 1024, 0)
    cases = [
        ("clone", (thread,), True),
        ("clone", (process,), False),
        ("clone", (0x4100,), False),  # as vfork
        ("openat", (-100, 2**40, CLOEXEC), True),
        ("openat", (-100, 2**40, WRITE_ONLY), False),
        ("openat", (-100, 2**40, 0o2), False),
        ("openat", (-100, 2**40, CREATE), False),
        ("openat", (-100, 2**40, 0o1000), False),  # emptied
        ("openat", (-100, 2**40, TEMPORARY), False),
        ("prlimit64", (0, 7, 2**40, 0), True),
        ("prlimit64", (2**32, 7, 2**40, 0), True),  # the kernel reads 32 bits: itself
        ("prlimit64", (77, 7, 2**40, 0), False),
        ("fcntl", own_file, True),
        ("fcntl", set_owner, False),
        ("fcntl", set_lease, False),
        ("ioctl", (1, 0x5401), True),  # is it a terminal
        ("ioctl", (1, 0x5412), False),  # type into one
        ("ioctl", (1, 0x40086602), False),  # a file's flags
        ("ioctl", (1, 0x8901), False),  # who gets signals
        ("prctl", (15, 2**40), True),
        ("prctl", (1, 0), False),  # live longer than the parent
        ("socketpair", (1, 2), True),
        ("socketpair", (30, 2), False),
        ("sendto", (3, 2**40, 1, 0, 0, 0), True),
        ("sendto", (3, 2**40, 1, 0, 2**40, 110), False),
        ("sendto", (3, 2**40, 1, 0, 5, 110), False),
    ]
    for name, arguments, allowed in cases:
        found = verdict(machine, calls[name], *(a % 2**64 for a in arguments))
        assert found == (ALLOWED if allowed else REFUSED), (name, arguments)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_of_other_interfaces_are_refused(machine):
    """A 32-bit call means another thing by the same number."""
    read = numbers("read 0 63", machine)["read"]
    assert verdict(machine, read, architecture=0x40000003) == REFUSED
    assert verdict(machine, 0x40000000 + read) == REFUSED
