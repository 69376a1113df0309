"""Huge pages for the buffers of XLA's CPU backend.

XLA takes the temporary memory of a step from the C library at every step and gives it back afterwards; the kernel then
hands out and zeroes a hundred thousand pages of 4 KiB each time. glibc (2.35 and later) can ask for pages of 2 MiB, but
only if it is told before the process begins. docs/performance.md has what that is worth.
"""

import os
import sys
from pathlib import Path

_SETTING = "GLIBC_TUNABLES"
_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use_huge_pages() -> None:
    """Begins the process again, with the same arguments and process id, where it runs with small pages for no reason.

    Does nothing where GLIBC_TUNABLES is already set, where the system is not Linux, and where its kernel grants no huge
    pages on request.
    """
    if sys.platform != "linux" or _SETTING in os.environ or not _grants_huge_pages():
        return
    os.environ[_SETTING] = "glibc.malloc.hugetlb=1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _grants_huge_pages() -> bool:
    try:
        return "[never]" not in _POLICY.read_text()
    except OSError:
        return False
