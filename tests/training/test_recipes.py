"""A recipe is a layer between file and options, holds its paper's numbers, and runs; the documentation says what it sets."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from finished_runs import records

from grpo_jax.objectives import POLICY_TERMS
from grpo_jax.training import configfile, schema
from grpo_jax.training.config import RunConfig
from grpo_jax.training.recipes import RECIPES, REPLACED
from grpo_jax.training.schema import ConfigError

ROOT = Path(__file__).parents[2]
ARITHMETIC = ROOT / "configs" / "arithmetic.yaml"
SMOKE = ROOT / "configs" / "smoke.yaml"
DOCS = ROOT / "docs" / "recipes.md"


def load(recipe: str, *options: tuple[str, str], path: Path = ARITHMETIC) -> RunConfig:
    return configfile.load(path, options, recipe)


def flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def written(folder: Path, text: str) -> Path:
    """configs/arithmetic.yaml with the sections `grpo`, `rewards` and `schedules` of `text` over its own."""
    tree = configfile.read_yaml(ARITHMETIC)
    assert isinstance(tree, dict)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(schema.merged(tree, yaml.safe_load(text))))
    return path


# The layers


@pytest.mark.parametrize("path", [ARITHMETIC, SMOKE], ids=lambda path: path.stem)
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_loads_over_the_configs_as_they_stand_and_only_its_own_keys_move(name: str, path: Path) -> None:
    plain, config = dict(flat(schema.plain(configfile.load(path)))), dict(flat(schema.plain(load(name, path=path))))
    settings = dict(flat(RECIPES[name].settings(configfile.load(path).rollout.max_completion_tokens)))
    for key, value in settings.items():
        if value is not None:
            assert config[key] == value, key
    for key in config.keys() & plain.keys() - settings.keys():
        if not key.startswith(REPLACED):
            assert config[key] == plain[key], key


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_leaves_scale_to_the_file(name: str) -> None:
    sections = ("grpo.policy.", "grpo.advantage.", "grpo.kl.", "grpo.off_policy.", "grpo.groups.", "rewards.overlong")
    keys = {"grpo.kl_coef", "grpo.entropy_coef", "grpo.updates_per_rollout", "grpo.minibatches"}
    for key, _ in flat(RECIPES[name].settings(100)):
        assert key in keys or key.startswith((*sections, "schedules.")), key


def test_order_is_defaults_file_recipe_options(tmp_path: Path) -> None:
    path = written(tmp_path, "grpo: {steps: 7, kl_coef: 0.5, minibatches: 2}")
    config = load("dapo", ("grpo.minibatches", "4"), ("grpo.policy.clip_high", "0.3"), path=path)
    assert config.seed == RunConfig().seed  # a default
    assert config.grpo.steps == 7  # the file
    assert config.grpo.kl_coef == 0  # the recipe over the file
    assert config.grpo.minibatches == 4 and config.grpo.policy.options["clip_high"] == 0.3  # options over the recipe


def test_recipe_drops_what_the_file_has_in_the_sections_that_are_its_own(tmp_path: Path) -> None:
    text = """
    grpo:
      minibatches: 2
      policy: {term: grpo, clip_high: 0.3}
      advantage: {estimator: grpo, epsilon: 0.5}
      kl: {estimator: k2, refresh_every: 9}
      off_policy: {correction: tis, cap: 3.0}
    """
    path = written(tmp_path, text)
    assert configfile.load(path).grpo.policy.clip_high == 0.3
    grpo = load("scale_rl", path=path).grpo
    assert grpo.policy.clip_high is None and grpo.advantage.epsilon is None
    assert (grpo.kl.estimator, grpo.kl.refresh_every) == ("k3", 0)
    assert grpo.off_policy.correction == "none" and grpo.off_policy.cap is None
    # Also where the recipe itself says nothing of the section.
    assert load("luspo", path=path).grpo.off_policy.correction == "none"
    # What is no section of the recipe's stays.
    assert load("luspo", path=path).grpo.minibatches == 2


def test_schedule_of_a_coefficient_that_the_recipe_sets_goes_and_another_stays(tmp_path: Path) -> None:
    text = """
    grpo: {entropy_coef: 0.01}
    schedules: {kl_coef: {kind: linear, end: 0.01, steps: 5}, entropy_coef: {kind: linear, end: 0.0}}
    """
    path = written(tmp_path, text)
    schedules = load("r1", path=path).schedules  # sets the KL's weight and no entropy bonus
    assert schedules.kl_coef.kind == "constant" and schedules.entropy_coef.kind == "linear"
    entropy = load("skywork_or1", path=path).schedules.entropy_coef
    assert entropy.kind == "entropy_target" and entropy.end is None
    assert load("opo", path=path).schedules.entropy_coef.kind == "constant"


def test_sizes_of_another_treatment_of_dead_groups_go_and_those_of_the_same_stay(tmp_path: Path) -> None:
    replay = written(tmp_path, "grpo: {groups: {dead: replay, replay_groups: 5}}")
    assert load("dapo", path=replay).grpo.groups.replay_groups is None
    refill = written(tmp_path, "grpo: {groups: {dead: refill, max_refills: 9}}")
    assert load("dapo", path=refill).grpo.groups.max_refills == 9


def test_overlong_buffer_is_the_papers_share_of_the_length_in_effect(tmp_path: Path) -> None:
    def buffer(*options: tuple[str, str], path: Path = ARITHMETIC) -> int:
        overlong = load("dapo", *options, path=path).rewards.overlong
        assert overlong is not None and overlong.limit is None
        return overlong.buffer

    assert buffer() == 9  # a fifth of 46
    assert buffer(("sft.steps", "0"), ("rollout.max_completion_tokens", "20480")) == 4096
    assert buffer(("sft.steps", "0"), ("rollout.max_completion_tokens", "1")) == 1
    assert buffer(path=written(tmp_path, "rewards: {overlong: {buffer: 3, limit: 30}}")) == 9


def test_the_result_is_plain_keys_that_load_as_the_same_run_with_or_without_the_recipe(tmp_path: Path) -> None:
    for name in RECIPES:
        config = load(name)
        saved = tmp_path / "config.yaml"
        saved.write_text(configfile.dumped(config))
        assert "recipe" not in saved.read_text()
        assert configfile.load(saved) == config == configfile.load(saved, (), name)


@pytest.mark.parametrize(("name", "nearest"), [("dapoo", "dapo"), ("DR-GRPO", "dr_grpo"), ("gsppo", "gspo"), ("zzz", None)])
def test_unknown_recipe_is_refused_with_the_nearest_and_all(name: str, nearest: str | None) -> None:
    with pytest.raises(ConfigError) as error:
        load(name)
    message = str(error.value)
    assert message.startswith(f"recipe is {name!r}") and all(known in message for known in RECIPES)
    assert f"nearest is {nearest}" in message if nearest else "nearest" not in message


def test_rows_that_the_recipes_minibatches_do_not_divide_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"grpo\.prompts × grpo\.group_size is 40.*grpo\.minibatches 16"):
        load("dapo", ("grpo.prompts", "5"))


# The papers' numbers, typed from the papers


@pytest.mark.parametrize(
    ("name", "paper", "term", "options", "aggregation", "advantage", "kl_coef", "updates"),
    [
        ("deepseek_math", "2402.03300", "grpo", {}, "sequence_mean", ("group_mean", "group_std"), 0.04, 1),
        (
            *("r1", "2501.12948", "grpo", {"clip_low": 1.0, "clip_high": 10.0}),
            *("sequence_mean", ("group_mean", "group_std"), 0.001, 16),
        ),
        (
            *("dapo", "2503.14476", "dapo", {"clip_low": 0.2, "clip_high": 0.28}),
            *("token_mean", ("group_mean", "group_std"), 0, 16),
        ),
        (
            *("dr_grpo", "2503.20783", "dr_grpo", {"clip_low": 0.2, "clip_high": 0.2}),
            *("sequence_sum_fixed", ("group_mean", "none"), 0, 8),
        ),
        (
            *("gspo", "2507.18071", "gspo", {"clip_low": 3e-4, "clip_high": 4e-4}),
            *("sequence_mean", ("group_mean", "group_std"), 0, 4),
        ),
        ("scale_rl", "2510.13786", "cispo", {"ratio_cap": 5.0}, "token_mean", ("group_mean", "batch_std"), 0, 1),
        ("lite_ppo", "2508.08221", "grpo", {}, "token_mean", ("group_mean", "batch_std"), 0, 8),
        ("rloo", "2402.14740", "grpo", {}, "sequence_sum_fixed", ("leave_one_out", "none"), 0.03, 1),
        ("reinforce_pp", "2501.03262", "grpo", {"clip_high": 0.2}, "sequence_mean", ("batch_mean", "batch_std"), 0.001, 1),
        ("opo", "2505.23585", "grpo", {}, "sequence_mean", ("length_weighted", "none"), 0, 1),
        ("gdpo", "2601.05242", "dapo", {"clip_low": 0.2, "clip_high": 0.28}, "token_mean", (None, None), 0.0005, 8),
        ("max_rl", "2602.02710", "grpo", {}, "sequence_mean", ("group_mean", "group_mean"), 0, 1),
        (
            *("luspo", "2602.05261", "luspo", {"clip_low": 2e-3, "clip_high": 2.5e-3}),
            *("sequence_sum_fixed", ("group_mean", "group_std"), 0.02, 1),
        ),
        (
            *("sapo", "2511.20347", "sapo", {"gate_positive": 1.0, "gate_negative": 1.05}),
            *("sequence_mean", ("group_mean", "group_std"), 0.02, 4),
        ),
        (
            *("gmpo", "2507.20673", "gmpo", {"log_clip_low": 0.4, "log_clip_high": 0.4}),
            *("sequence_mean", ("group_mean", "group_std"), 0, 8),
        ),
        (
            *("clip_cov", "2505.22617", "clip_cov", {"cov_ratio": 2e-4, "cov_low": 1.0, "cov_high": 5.0, "clip_high": 1.0}),
            *("token_mean", ("group_mean", "group_std"), 0.02, 8),
        ),
        (
            *("kl_cov", "2505.22617", "kl_cov", {"cov_ratio": 2e-3, "cov_kl_coef": 1.0}),
            *("token_mean", ("group_mean", "group_std"), 0, 8),
        ),
        ("skywork_or1", "2505.22312", "grpo", {}, "token_mean", ("group_mean", "group_std"), 0, 1),
    ],
)
def test_settings_in_effect_are_the_papers(
    name: str,
    paper: str,
    term: str,
    options: dict[str, float],
    aggregation: str,
    advantage: tuple[str | None, str | None],
    kl_coef: float,
    updates: int,
) -> None:
    grpo = load(name).grpo
    assert RECIPES[name].paper == paper
    assert grpo.policy.term == term and grpo.policy.summed_by == aggregation
    assert {key: grpo.policy.options[key] for key in options} == options
    assert (grpo.advantage.resolved.baseline, grpo.advantage.resolved.scale) == advantage
    assert grpo.kl_coef == kl_coef
    assert grpo.updates_a_step == updates


def test_what_only_single_papers_have() -> None:
    def groups(name: str) -> tuple[str, bool]:
        return load(name).grpo.groups.dead, load(name).grpo.groups.mask_truncated

    dapo = load("dapo")
    assert groups("dapo") == ("refill", False) and groups("gdpo")[0] == "refill"
    assert dapo.rewards.overlong is not None and dapo.rewards.overlong.factor == 1.0
    assert groups("dr_grpo")[0] == groups("max_rl")[0] == groups("gmpo")[0] == "keep"
    assert groups("scale_rl") == ("drop", True) and load("scale_rl").grpo.off_policy.old_logprobs == "sampler"
    assert groups("skywork_or1") == ("drop", False)
    assert groups("clip_cov")[0] == groups("kl_cov")[0] == "drop"
    assert load("deepseek_math").grpo.kl.estimator == "k3"
    assert load("r1").grpo.kl.refresh_every == 400 and load("r1").grpo.kl.estimator == "k3"
    for name in ("rloo", "reinforce_pp"):
        assert (load(name).grpo.kl.estimator, load(name).grpo.kl.place) == ("k1", "reward")
    assert load("rloo").grpo.policy.length == 1  # a row's sum, not divided by any length
    assert load("dr_grpo").grpo.policy.length is None  # the most tokens of a completion
    assert load("luspo").grpo.policy.length == 1
    skywork = load("skywork_or1")
    entropy = skywork.schedules.entropy_coef
    assert (entropy.target, entropy.step_size, entropy.ceiling) == (0.2, 1e-4, 0.005) and skywork.grpo.entropy_coef == 0
    for name in ("deepseek_math", "rloo", "opo", "max_rl", "skywork_or1"):
        assert load(name).grpo.on_policy


def test_recipes_reach_every_published_advantage_estimator_and_most_terms() -> None:
    configs = [load(name).grpo for name in RECIPES]
    assert {config.policy.term for config in configs} == POLICY_TERMS.keys() - {"bnpo", "dual_clip", "gspo_token"}


# The documentation


def test_documentation_says_what_each_recipe_sets() -> None:
    text = DOCS.read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| \[.*?\]\(.*?\) \| (.*) \|$", text, re.M))
    assert list(rows) == list(RECIPES)
    known = {key.path for key in schema.keys(RunConfig)}
    for name, cell in rows.items():
        said = {}
        for key, value in re.findall(r"`([\w.]+): ([^`]*)`", cell):
            said[key if key.startswith(("rewards.", "schedules.")) else f"grpo.{key}"] = yaml.safe_load(value)
        assert said.keys() <= known
        assert said == dict(flat(RECIPES[name].settings(20480))), name


def test_documentation_has_a_section_and_a_scale_for_each_recipe() -> None:
    text = DOCS.read_text()
    sections = {part.split("\n", 1)[0]: " ".join(part.split()) for part in re.split(r"^##+ ", text, flags=re.M)}
    scale = sections["What the papers used at their scale"]
    for name, recipe in RECIPES.items():
        for words in (recipe.summary, recipe.differs, f"https://arxiv.org/abs/{recipe.paper}", "Sources:"):
            assert words in sections[name], (name, words)
        assert f"| `{name}` | {recipe.at_scale} |" in scale, name


# A run


@pytest.mark.slow
def test_every_recipe_trains(tmp_path: Path) -> None:
    from grpo_jax.training.loop import train

    options = {
        "model.num_layers": "1",
        # An untrained policy answers nothing right, but some of its completions end.
        "rewards.accuracy": "eos",
        "sft.steps": "0",
        "grpo.steps": "1",
        "grpo.prompts": "4",
        "grpo.group_size": "4",
        "evaluation.problems": "1",
        "checkpoint.every": "0",
        "logging.samples_every": "0",
        "logging.tensorboard": "false",
        "logging.plots": "false",
    }
    for name in RECIPES:
        config = load(name, *options.items(), ("run_dir", str(tmp_path / name)), path=SMOKE)
        train(config)
        (record,) = [record for record in records(Path(config.run_dir)) if "grad_norm" in record]
        assert math.isfinite(record["loss"]) and 0 < record["grad_norm"] < math.inf, name
