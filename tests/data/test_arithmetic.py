"""The arithmetic curriculum: expressions, workings, the split, and demonstrations of mixed quality."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.data import CharacterTokenizer, PromptTemplate, make_task
from grpo_jax.data import expression as ex
from grpo_jax.data.arithmetic import ALPHABET, STAGES, ArithmeticTask, is_heldout, is_trainable
from grpo_jax.data.expression import Operation
from grpo_jax.data.working import work

TASK = ArithmeticTask()
COMPLETION = re.compile(r"<think>(?P<working>.*)</think><answer>(?P<answer>-?\d+)</answer>")

expressions = st.recursive(
    st.integers(0, 99),
    lambda side: st.builds(Operation, st.sampled_from("+-*"), side, side),
    max_leaves=5,
)


@given(expressions)
@settings(max_examples=100, deadline=None)
def test_text_means_what_python_takes_it_for_and_parses_back(expression: ex.Expression) -> None:
    assert eval(ex.text(expression)) == ex.value(expression)
    assert ex.value(ex.parse(ex.text(expression))) == ex.value(expression)
    assert ex.text(ex.parse(ex.text(expression))) == ex.text(expression)


@pytest.mark.parametrize("text", ["", "1+", "(1+2", "1 + 2", "1+2)", "x"])
def test_malformed_expressions_are_refused_with_the_place(text: str) -> None:
    with pytest.raises(ValueError, match="at character"):
        ex.parse(text)


@pytest.mark.parametrize("stage", STAGES)
def test_working_of_every_stage_arrives_at_the_exact_result(stage: str) -> None:
    rng = np.random.default_rng(1)
    for problem in TASK.sample(rng, stage, 300):
        match = COMPLETION.fullmatch(problem.solution or "")
        assert match and int(match["answer"]) == eval(problem.prompt) == int(problem.answer)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stated_step_of_a_clean_working_is_a_true_equation(stage: str) -> None:
    rng = np.random.default_rng(2)
    for problem in TASK.sample(rng, stage, 100):
        working, _ = work(ex.parse(problem.prompt))
        steps = [step for line in working.split(";") for step in re.sub(r"^[^:]*:", "", line).split(",")]
        # The last column step of a line is followed by the line's result.
        equations = [step.split("=")[:2] for step in steps]
        assert all(eval(left) == int(right) for left, right in equations), working


def test_hand_worked_examples() -> None:
    assert work(Operation("+", 47, 85)) == ("47+85:7+5=12,4+8+1=13=132", 132)
    assert work(Operation("-", 23, 58)) == ("-(58-23):8-3=5,5-2=3=-35", -35)
    assert work(Operation("-", 52, 27)) == ("52-27:12-7=5,4-2=2=25", 25)
    assert work(Operation("*", 47, 6)) == ("47*6:7*6=42,4*6=24,4+4=8=282", 282)
    assert work(Operation("*", 9, 58)) == ("9*58:8*9=72,5*9=45,5+7=12,4+1=5=522", 522)


def test_a_slip_changes_exactly_one_fact_and_what_follows_from_it() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for problem in TASK.sample(rng, "addition", 200):
        clean, _ = work(ex.parse(problem.prompt))
        slipped, result = work(ex.parse(problem.prompt), slip=rng)
        assert slipped != clean
        wrong += result != int(problem.answer)
    assert wrong == 200


@pytest.mark.parametrize("stage", STAGES)
def test_heldout_and_training_problems_share_no_key_in_either_order(stage: str) -> None:
    rng = np.random.default_rng(4)
    train = TASK.sample(rng, stage, 3000)
    heldout = TASK.heldout(stage, 64)
    assert not {problem.key for problem in train} & {problem.key for problem in heldout}
    assert len({problem.key for problem in heldout}) == len(heldout) == 64
    assert all(is_heldout(ex.parse(problem.prompt)) for problem in heldout)


@pytest.mark.parametrize("operator", "+-*")
def test_a_problem_and_its_mirror_image_stand_on_one_side_of_the_split(operator: str) -> None:
    pairs = [(a, b) for a in range(10, 40) for b in range(a)]
    sides = [is_heldout(Operation(operator, a, b)) for a, b in pairs]
    assert 0.05 < np.mean(sides) < 0.25
    assert sides == [is_heldout(Operation(operator, b, a)) for a, b in pairs]


def test_no_working_that_is_trained_on_states_a_heldout_problem() -> None:
    """Not even as a step: `35+42` held out keeps `7*5+42` out of training, and `58-23` keeps `23-58` out."""
    rng = np.random.default_rng(8)
    steps = set()
    for stage in STAGES:
        for problem in TASK.sample(rng, stage, 3000):
            working, _ = work(ex.parse(problem.prompt))
            # `-(58-23):…` heads the working of 23-58; `7*5=35` stands without a colon.
            heads = [re.split("[:=]", line)[0].removeprefix("-") for line in working.split(";")]
            steps |= {head for head in heads if re.fullmatch(r"\d\d[-+]\d\d|\d\d\*\d|\d\*\d\d", head)}
    assert len(steps) > 5000
    assert not [step for step in steps if is_heldout(ex.parse(step))]


def test_a_longer_problem_is_trained_on_only_if_its_steps_are() -> None:
    outcomes = set()
    for other in range(10, 100):
        problem = ex.parse(f"7*5+{other}")
        step_is_heldout = is_heldout(Operation("+", 35, other))
        assert is_trainable(problem) == (not is_heldout(problem) and not step_is_heldout)
        outcomes.add((is_heldout(problem), step_is_heldout))
    assert len(outcomes) >= 3, "the cases that the rule tells apart did not all occur"


def test_single_digit_facts_are_never_kept_from_training() -> None:
    problems = TASK.sample(np.random.default_rng(9), "precedence", 5000)
    products = {ex.text(next(ex.operations(ex.parse(problem.prompt)))) for problem in problems}
    assert products == {f"{a}*{b}" for a in range(2, 10) for b in range(2, 10)}


def test_operations_come_in_the_order_of_evaluation() -> None:
    assert [ex.text(step) for step in ex.operations(ex.parse("20-(3+4)*5"))] == ["3+4", "7*5", "20-35"]


def test_heldout_problems_are_the_same_at_every_call_and_a_prefix_of_a_longer_list() -> None:
    assert TASK.heldout("precedence", 20) == TASK.heldout("precedence", 40)[:20]


def test_stages_are_what_they_say() -> None:
    rng = np.random.default_rng(5)
    prompts = {stage: [problem.prompt for problem in TASK.sample(rng, stage, 300)] for stage in STAGES}
    assert all(re.fullmatch(r"\d\d\+\d\d", prompt) for prompt in prompts["addition"])
    assert any(eval(prompt) < 0 for prompt in prompts["subtraction"])
    assert all(re.fullmatch(r"\d+\*\d+", prompt) for prompt in prompts["multiplication"])
    assert all(len(re.findall(r"[-+*]", prompt)) == 2 and "*" in prompt for prompt in prompts["precedence"])
    assert all(len(re.findall(r"[-+*]", prompt)) == 3 and "(" in prompt for prompt in prompts["parentheses"])


def test_demonstrations_skip_and_slip_at_the_stated_rates() -> None:
    task = ArithmeticTask(skip_rate=0.3, slip_rate=0.5)
    rng = np.random.default_rng(6)
    problems = task.sample(rng, "addition", 2000)
    demonstrations = [task.demonstration(problem, rng) for problem in problems]
    skipped = np.mean([text.startswith("<think></think>") for text in demonstrations])
    right = np.mean([f"<answer>{p.answer}<" in text for p, text in zip(problems, demonstrations, strict=True)])
    assert abs(skipped - 0.3) < 0.04
    assert abs(right - (0.3 + 0.7 * 0.5)) < 0.04


def test_every_demonstration_fits_the_row_of_the_shipped_config() -> None:
    template = PromptTemplate(CharacterTokenizer(ALPHABET))
    task = ArithmeticTask(skip_rate=0.0, slip_rate=1.0)
    rng = np.random.default_rng(7)
    for stage in STAGES:
        for problem in task.sample(rng, stage, 500):
            assert len(template.encode_prompt(problem)) <= 12
            assert len(template.encode_completion(task.demonstration(problem, rng))) <= 46


def test_options_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="slip_rate"):
        make_task("arithmetic", {"slip_rate": 1.5})
