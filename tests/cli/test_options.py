"""The command line is split into flags and keys, and whatever is neither is refused with what was meant."""

from pathlib import Path

import pytest

from grpo_jax.cli.options import Options, help_text, parse_options
from grpo_jax.training import schema
from grpo_jax.training.config import RunConfig
from grpo_jax.training.recipes import RECIPES, REPLACED
from grpo_jax.training.schema import ConfigError


def test_flags_and_keys_in_both_forms() -> None:
    keys = ["--grpo.kl_coef=0.02", "--mesh", "data=2,fsdp=4", "--seed", "3"]
    assert parse_options(["--config", "a.yaml", "--recipe=dapo", "--resume", *keys, "--print_config"]) == Options(
        config=Path("a.yaml"),
        recipe="dapo",
        resume=True,
        print_config=True,
        values=(("grpo.kl_coef", "0.02"), ("mesh", "data=2,fsdp=4"), ("seed", "3")),
    )


def test_value_may_begin_with_a_minus_or_be_empty() -> None:
    assert parse_options(["--rewards.format_weight", "-1e-3", "--data.prompt.system_prompt="]).values == (
        ("rewards.format_weight", "-1e-3"),
        ("data.prompt.system_prompt", ""),
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--resum"], ["--resum", "--resume"]),
        (["--confg", "x"], ["--confg", "--config"]),
        (["--print-config"], ["--print_config"]),
        (["--run-dir", "x"], ["run-dir", "run_dir"]),
        (["--grpo.kl_cof", "1"], ["grpo.kl_cof", "'1'", "grpo.kl_coef"]),
        (["--grpo.kl_coef"], ["--grpo.kl_coef", "lacks its value", "a finite number"]),
        (["--grpo.kl_coef", "--seed", "1"], ["--grpo.kl_coef", "lacks its value"]),
        (["--config"], ["--config", "lacks its value"]),
        (["--config", "a", "--config", "b"], ["twice", "'a'", "'b'"]),
        (["--recipe", "dapo", "--recipe", "gspo"], ["--recipe", "twice", "'dapo'", "'gspo'"]),
        (["--recipe"], ["--recipe", "lacks its value", "one of", "dapo"]),
        (["--recipes", "dapo"], ["--recipes", "--recipe"]),
        (["--resume=true"], ["--resume", "no value", "'true'"]),
        (["--resume", "runs/x"], ["'runs/x'", "--run_dir"]),
        (["-x"], ["'-x'"]),
        (["--"], ["'--'"]),
    ],
)
def test_wrong_option_is_one_message_with_what_was_meant(argv: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse_options(argv)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_help_has_every_key_with_its_meaning_type_and_default() -> None:
    text = help_text("python train.py")
    flat = " ".join(text.split())
    for key in schema.keys(RunConfig):
        title = f"{key.path}:" if key.section is not None else f"--{key.path} {key.doc}".rstrip()
        assert title in flat, key.path
    assert "--grpo.group_size Completions sampled for each prompt (G)," in flat
    assert "(a whole number; default 8)" in flat
    assert "(one of loss, reward; default 'loss')" in flat
    assert max(map(len, text.splitlines())) <= 100


def test_help_lists_every_recipe_with_summary_and_paper_and_says_what_it_replaces() -> None:
    flat = " ".join(help_text("python train.py").split())
    for name, recipe in RECIPES.items():
        assert f"{name} {recipe.summary} (arXiv {recipe.paper})" in flat
    assert f"What the file has in {', '.join(REPLACED)} is dropped" in flat
