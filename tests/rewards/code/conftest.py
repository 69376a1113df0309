"""The sandboxes that the tests of this folder use."""

import functools
import os
import warnings

import pytest

from grpo_jax.rewards.code import CodeConfig, Limits, SandboxFault, check_sandbox

SMALL = Limits(cpu_seconds=1, wall_seconds=2, memory_mb=128, output_kb=64, message_kb=256, file_mb=4)


@functools.cache
def _fault(sandbox):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_sandbox(CodeConfig(sandbox=sandbox))
        except SandboxFault as fault:
            return str(fault)
    return None


def _config(sandbox, limits):
    fault = _fault(sandbox)
    if fault is None:
        return CodeConfig(sandbox=sandbox, limits=limits)
    if os.environ.get("CI"):
        pytest.fail(fault)
    pytest.skip(fault)


@pytest.fixture(scope="session")
def shut_in():
    """Namespaces, with small limits."""
    return _config("bubblewrap", SMALL)


@pytest.fixture(scope="session", params=["bubblewrap", "rlimits"])
def either(request):
    """Both modes in turn, with the usual limits."""
    return _config(request.param, Limits())
