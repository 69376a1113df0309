"""Tokenizers, the prompt template, tasks and the curriculum: everything between a question and its ids. Host side."""

from grpo_jax.data.characters import CharacterTokenizer
from grpo_jax.data.curriculum import (
    CurriculumConfig,
    CurriculumState,
    advance,
    initial_state,
    observe,
    sample_problems,
    stage_weights,
)
from grpo_jax.data.gsm8k import GSM8KConfig, gsm8k_task
from grpo_jax.data.hf_tokenizer import HFTokenizer
from grpo_jax.data.humaneval import humaneval_task
from grpo_jax.data.jsonl import JsonlConfig, JsonlTask, jsonl_task
from grpo_jax.data.mathematics import MathConfig, math_task
from grpo_jax.data.packing import PackedRows, pack_demonstrations
from grpo_jax.data.padding import pad_rows
from grpo_jax.data.reasoning_gym import ReasoningGymConfig, ReasoningGymTask
from grpo_jax.data.source import SourceConfig
from grpo_jax.data.task import TASKS, FiniteTask, Problem, Split, Task, fingerprint, make_task, question_key
from grpo_jax.data.template import PromptConfig, PromptTemplate
from grpo_jax.data.tokenizer import Tokenizer

__all__ = [
    "TASKS",
    "CharacterTokenizer",
    "CurriculumConfig",
    "CurriculumState",
    "FiniteTask",
    "GSM8KConfig",
    "HFTokenizer",
    "JsonlConfig",
    "JsonlTask",
    "MathConfig",
    "PackedRows",
    "Problem",
    "PromptConfig",
    "PromptTemplate",
    "ReasoningGymConfig",
    "ReasoningGymTask",
    "SourceConfig",
    "Split",
    "Task",
    "Tokenizer",
    "advance",
    "fingerprint",
    "gsm8k_task",
    "humaneval_task",
    "initial_state",
    "jsonl_task",
    "make_task",
    "math_task",
    "observe",
    "pack_demonstrations",
    "pad_rows",
    "question_key",
    "sample_problems",
    "stage_weights",
]
