"""Rewards for code: model-written Python against unit tests or cases of input and output, in a sandbox."""

from grpo_jax.rewards.code.config import CodeConfig, Limits, SandboxName
from grpo_jax.rewards.code.extract import extract_code
from grpo_jax.rewards.code.program import ProgramResult, run_python
from grpo_jax.rewards.code.reward import code_reward
from grpo_jax.rewards.code.sandbox import SandboxFault, check_sandbox

__all__ = [
    "CodeConfig",
    "Limits",
    "ProgramResult",
    "SandboxFault",
    "SandboxName",
    "check_sandbox",
    "code_reward",
    "extract_code",
    "run_python",
]
