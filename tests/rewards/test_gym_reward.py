"""reasoning-gym's scorers behind the reward: gold scores 1, and nothing else that was tried does."""

import dataclasses
import fractions
import json
import string
import sys
import time

import numpy as np
import pytest

from grpo_jax.data.reasoning_gym import ReasoningGymTask
from grpo_jax.rewards import reasoning_gym as reward_module
from grpo_jax.rewards.protocol import RewardInput
from grpo_jax.rewards.reasoning_gym import decode, reasoning_gym_reward

gym_factory = pytest.importorskip("reasoning_gym.factory")
gym_dataset = pytest.importorskip("reasoning_gym.dataset")

FAMILIES = (
    *("simple_equations", "polynomial_multiplication", "spiral_matrix", "word_sorting", "arc_1d", "gsm_symbolic", "bf"),
    *(
        "color_cube_rotation",
        "countdown",
        "n_queens",
        "simple_geometry",
        "shortest_path",
        "list_functions",
        "knights_knaves",
    ),
    *("coin_flip", "game_of_life_halting", "complex_arithmetic", "simple_integration", "puzzle24", "number_sorting"),
)
HEDGES = (
    *("", "  ", "qq zz", "[]", "[[]]", "{}", "()", "True False", "Yes No", "No Yes", "A B C D E", string.ascii_letters),
    *("nan", "nan+nanj", "inf", "null", "[NaN]", '""', ".", "none", "-1", "1e999", "lambda: 0", "24", "6*4*1*1"),
    " ".join(map(str, range(-50, 200))),
)


@dataclasses.dataclass
class Config:
    seed: int = 0
    size: int = 10

    def validate(self):
        pass


class Fractions(gym_dataset.ProceduralDataset):
    """A data set of a user's own, whose scorer reads the answer without bounds, fails by some and says nan to others."""

    def __init__(self, config):
        super().__init__(config, seed=config.seed, size=config.size)

    def __getitem__(self, index):
        return {"question": f"What is {self.seed + index}/2?", "answer": f"{self.seed + index}/2", "metadata": {}}

    def score_answer(self, answer, entry):
        if answer == "nothing":
            return float("nan")
        return float(fractions.Fraction(answer.strip("#")) == fractions.Fraction(entry["answer"]))


if "fractions_of_a_user" not in gym_factory.DATASETS:
    gym_factory.register_dataset("fractions_of_a_user", Fractions, Config)


def row(problem, answer):
    return judge_text(problem.metadata, f"<think>…</think><answer>{answer}</answer>")


def judge_text(metadata, completion):
    metadata = json.loads(json.dumps(dict(metadata)))
    return RewardInput(prompt="", completion=completion, reference="", ids=(), end="eos", metadata=metadata)


def problems(name, n, seed=3, **options):
    return ReasoningGymTask(datasets={name: options}).sample(np.random.default_rng(seed), name, n)


def check_data_set(name):
    """What is wrong with the judgements of a few problems."""
    wrong = []
    drawn = problems(name, 4)
    for problem, other in zip(drawn, drawn[1:] + drawn[:1], strict=True):
        answer = problem.answer
        if answer:
            # The scorer itself, as well as the comparison with the entry's own text that comes before it.
            scorer = reward_module._dataset(name, json.dumps(problem.metadata["config"]))
            if scorer.score_answer(answer.strip(), decode(problem.metadata["entry"])) < 1:
                wrong.append(("the scorer refuses", answer))
            for text in (answer, f" {answer}\n"):
                if reasoning_gym_reward(row(problem, text)) != 1:
                    wrong.append(("refused", text))
            # puzzle24 and countdown have many answers, and the other's numbers may be the same.
            if other.answer.casefold() != answer.casefold() and reasoning_gym_reward(row(problem, other.answer)) != 0:
                wrong.append(("accepted", other.answer, "for", answer))
        for hedge in HEDGES:
            if hedge.strip().casefold() != answer.strip().casefold() and reasoning_gym_reward(row(problem, hedge)) != 0:
                wrong.append(("accepted", hedge, "for", answer))
    return wrong


@pytest.mark.parametrize("name", FAMILIES)
def test_the_gold_answer_scores_1_and_wrong_empty_and_hedged_ones_0(name):
    assert check_data_set(name) == []


@pytest.mark.slow
def test_every_data_set_of_the_package_is_judged_so():
    wrong, left_out = {}, []
    for name in sorted(set(gym_factory.DATASETS) - {"composite", "fractions_of_a_user"} - set(FAMILIES)):
        start = time.perf_counter()
        problems(name, 1)
        if time.perf_counter() - start > 1.0:
            left_out.append(name)
        elif found := check_data_set(name):
            wrong[name] = found
    assert wrong == {}
    assert len(left_out) < 20, left_out


def test_only_the_last_complete_answer_is_judged():
    (problem,) = problems("gcd", 1)
    gold, metadata = problem.answer, problem.metadata
    for completion, score in [
        (f"<answer>0</answer><answer>{gold}</answer>", 1),
        (f"<answer>{gold}</answer><answer>0</answer>", 0),
        (f"<answer>{gold}</answer><answer></answer>", 0),
        (f"<answer>{gold}", 0),
        (f"{gold}</answer>", 0),
        (gold, 0),
        (f"#### {gold}", 0),
        ("", 0),
    ]:
        assert reasoning_gym_reward(judge_text(metadata, completion)) == score, completion


def test_a_scorer_that_fails_by_the_answer_gives_0_and_one_without_a_number_is_an_error():
    (problem,) = problems("fractions_of_a_user", 1)
    number = fractions.Fraction(problem.answer)
    assert reasoning_gym_reward(row(problem, f"{number * 10}/10" if number.denominator == 1 else f"{float(number)}")) == 1
    assert reasoning_gym_reward(row(problem, "no fraction")) == 0
    assert reasoning_gym_reward(row(problem, "1/0")) == 0
    with pytest.raises(ValueError, match=r"the scorer of fractions_of_a_user gave nan, .* for the answer 'nothing'"):
        reasoning_gym_reward(row(problem, "nothing"))


def test_an_answer_of_more_than_10_000_characters_is_not_judged():
    (problem,) = problems("fractions_of_a_user", 1)
    for padding, score in ((9_900, 1), (10_000, 0)):
        assert reasoning_gym_reward(row(problem, "#" * padding + problem.answer)) == score


def test_a_row_of_another_task_is_not_judged():
    assert reasoning_gym_reward(judge_text({}, "<answer>1</answer>")) is None
    assert reasoning_gym_reward(judge_text({"dataset": "gcd"}, "<answer>1</answer>")) is None


def test_part_of_a_score_is_0():
    (problem,) = problems("word_sorting", 1)
    words = problem.answer.split(", ")
    partly = ", ".join([*words[:-2], words[-1], words[-2]])
    scorer = reward_module._dataset("word_sorting", "{}")
    assert 0 < scorer.score_answer(partly, decode(problem.metadata["entry"])) < 1
    assert reasoning_gym_reward(row(problem, partly)) == 0


@pytest.mark.parametrize(
    "name",
    [
        *("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"),
        *("countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication"),
    ],
)
@pytest.mark.parametrize("form", ["__import__('pathlib').Path({!r}).touch()", "[open({!r}, 'w')]", "exec('open({!r}, 1)')"])
def test_no_answer_is_run_as_code(name, form, tmp_path):
    (problem,) = problems(name, 1)
    trace = tmp_path / "ran"
    assert reasoning_gym_reward(row(problem, form.format(str(trace)))) == 0
    assert not trace.exists()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("countdown", "9**9**9**9"),
        ("puzzle24", "9**9**9**9"),
        ("simple_integration", "9**9**9**9"),
        ("simple_integration", "((((((9**50)**50)**50)**50)**50)**50)**50"),
        ("simple_integration", "9**(10**9)"),
        ("intermediate_integration", "factorial(10**9)"),
        ("polynomial_multiplication", "(x+1)**999999"),
        ("polynomial_multiplication", "(" * 900 + "x" + ")" * 900),
        ("polynomial_multiplication", "-" * 990 + "x"),
        ("coin_flip", "1e999999999"),
        ("fractions_of_a_user", "1e999999999"),
        ("power_function", "1e999999999"),
        ("fraction_simplification", "9" * 5000 + "/7"),
        ("rubiks_cube", "R999999999"),
        ("propositional_logic", "(" * 4000 + "P" + ")" * 4000),
        ("graph_color", "[" * 4000),
        ("gcd", "9" * 100_000),
    ],
)
def test_an_answer_that_would_grow_without_bound_scores_0_at_once(name, answer):
    (problem,) = problems(name, 1)
    row_ = row(problem, answer)
    start = time.perf_counter()
    assert reasoning_gym_reward(row_) == 0
    assert time.perf_counter() - start < 10.0


def test_numbers_that_were_not_given_make_no_24():
    (problem,) = problems("puzzle24", 1)
    a, b, c, d = decode(problem.metadata["entry"])["metadata"]["numbers"]
    assert reasoning_gym_reward(row(problem, "6*4*1*1")) == 0
    assert reasoning_gym_reward(row(problem, f"{a}+{b}+{c}+{d}-{a}")) == 0
    spaced = problem.answer.replace(" ", "").replace("*", " * ")
    assert reasoning_gym_reward(row(problem, f"({spaced})")) == 1


def test_24_is_exact():
    entry = {"dict": [["answer", "x"], ["metadata", {"dict": [["numbers", [4, 6, 3, 5]]]}]]}
    metadata = {"dataset": "puzzle24", "config": {}, "entry": entry}
    near = "4*6+3/5"
    assert reward_module._dataset("puzzle24", "{}").score_answer(near, decode(entry)) == 1  # the scorer drops the fraction
    assert reasoning_gym_reward(judge_text(metadata, f"<answer>{near}</answer>")) == 0
    assert reasoning_gym_reward(judge_text(metadata, "<answer>(5 + 3) * 6 / 4</answer>")) == 0
    assert reasoning_gym_reward(judge_text(metadata, "<answer>4 * (6 + 5 - 3) - 8</answer>")) == 0
    assert reasoning_gym_reward(judge_text(metadata, "<answer>6 * (5 + 3 - 4)</answer>")) == 1


def test_a_sum_near_the_target_is_not_the_target():
    entry = {"dict": [["answer", "x"], ["metadata", {"dict": [["numbers", [999_999, 1]], ["target", 999_998]]}]]}
    metadata = {"dataset": "countdown", "config": {}, "entry": entry}
    assert reasoning_gym_reward(judge_text(metadata, "<answer>999999*1</answer>")) == 0
    assert reasoning_gym_reward(judge_text(metadata, "<answer>999999 - 1</answer>")) == 1


@pytest.mark.parametrize("answer", ["{0} + 2*Q", "{0} + Q", "{0} + 1/0", "{0} + oo"])
def test_an_antiderivative_is_one_in_its_own_variable(answer):
    (problem,) = problems("simple_integration", 1)
    assert reasoning_gym_reward(row(problem, problem.answer.replace("+ C", "- 3 + C"))) == 1
    assert reasoning_gym_reward(row(problem, answer.format(problem.answer))) == 0


def test_sorted_numbers_are_the_numbers():
    (problem,) = problems("number_sorting", 1)
    numbers = [float(number) for number in json.loads(problem.answer.replace("'", '"'))]
    assert reasoning_gym_reward(row(problem, json.dumps(numbers))) == 1
    assert reasoning_gym_reward(row(problem, json.dumps([number + 0.5 for number in numbers]))) == 0


def test_an_unknown_data_set_or_option_is_an_error_and_no_score():
    entry = {"dict": [["answer", "1"]]}
    for name, config in (("no_such_set", {}), ("gcd", {"no_such_option": 1})):
        with pytest.raises(ValueError, match=f"no data set '{name}' with the options"):
            reasoning_gym_reward(judge_text({"dataset": name, "config": config, "entry": entry}, "<answer>1</answer>"))


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    reward_module._dataset.cache_clear()
    entry = {"dict": [["answer", "1"]]}
    with pytest.raises(ValueError, match=r"pip install 'grpo_jax\[gym\]'"):
        reasoning_gym_reward(judge_text({"dataset": "gcd", "config": {}, "entry": entry}, "<answer>1</answer>"))
