"""The system calls that sandboxed code may not make, as a filter program for the kernel.

Root is not bound by the kernel's limit on processes, so processes are limited here: a program may start threads and
nothing else. What the filter refuses otherwise is what could use memory that no other limit counts, or widens the part of
the kernel that hostile code can reach. Numbers are those of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl,
include/uapi/asm-generic/unistd.h); instructions are classic BPF over struct seccomp_data (linux/seccomp.h).
"""

from __future__ import annotations

import platform
import struct

ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

_CLONE_THREAD = 0x10000
_AF_UNIX = 1
_PR_SET_PDEATHSIG = 1
_OWNER_REQUESTS = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP: the same by ioctl
_OWNER_COMMANDS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals sent by the kernel in this process's name

# name: (number on x86_64, number on aarch64); None where there is none.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # processes
    "fork": (57, None),
    "vfork": (58, None),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "personality": (135, 92),
    # namespaces, mounts, roots
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    # network: a pair of sockets within the process is all there is
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    # memory that the limit on address space does not count
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # what stays on a file or device of the system's, where this user owns it
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    # the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "seccomp": (317, 277),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "io_setup": (206, 0),
    "vmsplice": (278, 75),
}
# What a process may do that forks others and tidies up after them.
_OF_A_NURSERY = ("fork", "vfork", "chmod", "fchmod", "fchmodat", "utime", "utimes", "futimesat", "utimensat")
_KILL, _TGKILL, _PRLIMIT = (62, 129), (234, 131), (302, 261)
_CLONE, _SOCKETPAIR, _PRCTL, _FCNTL, _IOCTL = (56, 220), (53, 199), (157, 167), (72, 25), (16, 29)

# From here on both tables agree, and what is not named is unknown to older kernels too, so programs do without it.
_FIRST_NEW = 424
_NEW_ALLOWED = (436, 437, 439, 441)  # close_range, openat2, faccessat2, epoll_pwait2
_X32_BIT = 0x40000000

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def filter_program(process: int | None = None, machine: str | None = None, *, forks: bool = False) -> bytes:
    """The filter as the kernel takes it: an array of struct sock_filter.

    Args:
      process: the only process that may be sent signals or have its limits changed; None for any, which is for a process
        namespace of its own.
      machine: as `platform.machine` names it; this machine's by default.
      forks: whether processes may be started: for one of ours that holds those it starts to a filter without.

    Raises:
      ValueError: there is no table for the machine.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise ValueError(
            f"this machine is a {machine!r}, but code can be shut in only on {sorted(_MACHINES)}: the filter of system "
            "calls is written for these"
        )
    column, architecture = _MACHINES[machine]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, KILL)]
    if not forks:
        code += _when(_CLONE[column], [(_JUMP_ANY_BIT, 0, 1, _CLONE_THREAD), (_RETURN, 0, 0, ALLOW), (_RETURN, 0, 0, EPERM)])
    code += _when(_SOCKETPAIR[column], [(_JUMP_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, EPERM), (_RETURN, 0, 0, ALLOW)])
    code += _when(_PRCTL[column], [(_JUMP_EQUAL, 0, 1, _PR_SET_PDEATHSIG), (_RETURN, 0, 0, EPERM), (_RETURN, 0, 0, ALLOW)])
    commands = [step for command in _OWNER_COMMANDS for step in ((_JUMP_EQUAL, 0, 1, command), (_RETURN, 0, 0, EPERM))]
    code += _when(_FCNTL[column], [*commands, (_RETURN, 0, 0, ALLOW)], argument=1)
    requests = [step for request in _OWNER_REQUESTS for step in ((_JUMP_EQUAL, 0, 1, request), (_RETURN, 0, 0, EPERM))]
    code += _when(_IOCTL[column], [*requests, (_RETURN, 0, 0, ALLOW)], argument=1)
    if process is not None:
        only_itself = [(_JUMP_EQUAL, 1, 0, process), (_RETURN, 0, 0, EPERM), (_RETURN, 0, 0, ALLOW)]
        for numbers in (_KILL, _TGKILL):
            code += _when(numbers[column], only_itself)
        code += _when(_PRLIMIT[column], [(_JUMP_EQUAL, 2, 0, 0), *only_itself])
    for name, either in _DENIED.items():
        number = either[column]
        if number is not None and not (forks and name in _OF_A_NURSERY):
            code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, EPERM)]
    for number in _NEW_ALLOWED:
        code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, ALLOW)]
    code += [(_JUMP_AT_LEAST, 0, 1, _FIRST_NEW), (_RETURN, 0, 0, ENOSYS), (_RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def _when(number: int, rule: list[tuple[int, int, int, int]], argument: int = 0) -> list[tuple[int, int, int, int]]:
    """A rule, which must return, for the low half of an argument of one call. Both machines are little-endian."""
    return [(_JUMP_EQUAL, 0, len(rule) + 1, number), (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * argument), *rule]
