"""The held-out test: every stage, the same problems each time, rows that do not fill the last part left out."""

import dataclasses

import jax
import numpy as np
import pytest

from grpo_jax.data import CharacterTokenizer, PromptTemplate, pad_rows
from grpo_jax.data.arithmetic import ALPHABET, ArithmeticTask
from grpo_jax.evaluation import HeldoutTest, judge
from grpo_jax.evaluation.scores import StageScore, from_record, overall, to_metrics
from grpo_jax.generation import END_EOS, END_LENGTH, Rollout, SamplerConfig
from grpo_jax.model import GQAConfig, ModelConfig, init_params
from grpo_jax.rewards import CompositeReward

TOKENIZER = CharacterTokenizer(ALPHABET)
TEMPLATE = PromptTemplate(TOKENIZER)
TASK = ArithmeticTask()
MODEL = ModelConfig(
    vocab_size=26, num_layers=1, embed_dim=16, mlp_dim=16, gqa=GQAConfig(num_heads=2, num_kv_heads=1, head_dim=8)
)


@pytest.fixture(scope="module")
def heldout() -> HeldoutTest:
    return HeldoutTest(
        task=TASK,
        template=TEMPLATE,
        reward=CompositeReward(),
        problems=3,
        samples=2,
        sampler=SamplerConfig(),
        rows=8,
        max_prompt_tokens=12,
        max_completion_tokens=6,
        seed=0,
    )


@pytest.fixture(scope="module")
def params():
    return init_params(MODEL, jax.random.key(0))


def test_every_stage_is_scored_and_a_test_repeats_exactly(heldout: HeldoutTest, params) -> None:
    scores = heldout.run(MODEL, params, 0)
    assert tuple(scores) == TASK.stages
    assert scores == heldout.run(MODEL, params, 0)


def test_scores_do_not_depend_on_how_many_rows_are_generated_at_once(heldout: HeldoutTest, params) -> None:
    """15 problems do not fill parts of 4 or of 7: filled-up rows must not count, and draws belong to a row's number."""
    assert dataclasses.replace(heldout, rows=14).run(MODEL, params, 0) == heldout.run(MODEL, params, 0)


def rollout_of(completions: list[str], ends: list[int], problems) -> Rollout:
    prompts = [TEMPLATE.encode_prompt(problem) for problem in problems]
    rows = [
        prompt + TOKENIZER.encode(text) + ([TOKENIZER.eos_ids[0]] if end == END_EOS else [])
        for prompt, text, end in zip(prompts, completions, ends, strict=True)
    ]
    tokens, lengths = pad_rows(rows, 40, 0)
    starts = np.array([len(prompt) for prompt in prompts])
    return Rollout(
        tokens=tokens, prompt_lengths=starts, lengths=lengths, logprobs=np.zeros(tokens.shape), ends=np.array(ends), steps=0
    )  # fmt: skip


def test_completions_are_judged_as_they_were_sampled() -> None:
    problems = TASK.heldout("addition", 3)
    right = f"<think></think><answer>{problems[0].answer}</answer>"
    wrong = "<think></think><answer>1</answer>"
    cut = f"<think></think><answer>{problems[2].answer}</answer>"
    sampled = rollout_of([right, wrong, cut], [END_EOS, END_EOS, END_LENGTH], problems)
    result, rows = judge(CompositeReward(), TEMPLATE, problems, sampled)
    assert result.accuracy.tolist() == [1.0, 0.0, 1.0]
    assert [row.end for row in rows] == ["eos", "eos", "length"]
    assert rows[0].completion == right and rows[0].ids[-1] == TOKENIZER.eos_ids[0]
    assert result.components["termination"].tolist() == [1.0, 1.0, 0.0]


def test_scores_survive_the_log() -> None:
    score = StageScore(sampled_accuracy=0.5, greedy_accuracy=1.0, mean_length=7.0, termination_rate=0.25)
    other = StageScore(sampled_accuracy=1.0, greedy_accuracy=0.0, mean_length=9.0, termination_rate=0.75)
    scores = {"one": score, "two": other}
    assert from_record(to_metrics(scores)) == scores
    assert overall(scores).sampled_accuracy == 0.75
