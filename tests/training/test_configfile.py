"""YAML and options become the configuration they say; everything else is one message that names the place."""

import dataclasses
from pathlib import Path

import pytest

from grpo_jax.training import configfile
from grpo_jax.training.config import RunConfig
from grpo_jax.training.schema import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
SMOKE = CONFIGS / "smoke.yaml"


def refusal(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as error:
        configfile.load(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


def option_refusal(key: str, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        configfile.load(SMOKE, [(key, text)])
    return str(error.value)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        (SMOKE, []),
        (CONFIGS / "arithmetic.yaml", [("grpo.optimizer.learning_rate", "1e-5"), ("grpo.optimizer.clip_norm", "null")]),
        (CONFIGS / "smollm2_gsm8k.yaml", [("data.path", "a b.jsonl"), ("data.prompt.system_prompt", "Zeile 1\nµ: #'\"")]),
        (SMOKE, [("data.tokenizer.path", "t.json"), ("data.tokenizer.eos", "['<eos>', 'null', '1']")]),
        (SMOKE, [("rewards.extras.my_pkg.rewards:brevity", "0.1"), ("run_dir", "no"), ("mesh", "1")]),
        (SMOKE, [("model.mla.rope.yarn.factor", "4"), ("model.mla.rope.yarn.original_max_length", "128")]),
        (SMOKE, [("grpo.optimizer.eps", "1e-30"), ("model.norm_eps", "1.0e-6"), ("grpo.kl_coef", "0.1")]),
    ],
)
def test_saved_configuration_loads_as_the_same_configuration(
    path: Path, options: list[tuple[str, str]], tmp_path: Path
) -> None:
    config = configfile.load(path, options)
    saved = tmp_path / "config.yaml"
    saved.write_text(configfile.dumped(config), encoding="utf-8")
    assert configfile.load(saved) == config
    assert configfile.dumped(configfile.load(saved)) == saved.read_text(encoding="utf-8")


def test_every_config_in_the_repository_loads() -> None:
    for path in CONFIGS.glob("*.yaml"):
        options = [("data.path", "problems.jsonl")] if "gsm8k" in path.name else []
        configfile.load(path, options)


def test_option_goes_over_the_file_and_leaves_its_neighbours() -> None:
    plain = configfile.load(SMOKE)
    config = configfile.load(SMOKE, [("grpo.kl_coef", "0.5"), ("grpo.kl_coef", "0.25"), ("model.mla.kv_rank", "16")])
    assert config.grpo == dataclasses.replace(plain.grpo, kl_coef=0.25)
    assert config.model is not None and plain.model is not None
    assert config.model.mla == dataclasses.replace(plain.model.mla, kv_rank=16)  # type: ignore[type-var]


def test_partly_given_section_keeps_the_defaults_of_its_place(tmp_path: Path) -> None:
    # grpo.optimizer's own learning rate is not that of OptimizerConfig.
    config = configfile.load(SMOKE, [("grpo.optimizer.weight_decay", "0.5")])
    assert config.grpo.optimizer.learning_rate == RunConfig().grpo.optimizer.learning_rate
    assert config.grpo.optimizer.weight_decay == 0.5


def test_file_given_null_section_is_filled_by_options() -> None:
    config = configfile.load(SMOKE, [("model", "null"), ("pretrained.path", "m.gguf")])
    assert config.model is None and config.pretrained is not None


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("1e5", 1e5), ("3", 3.0), ("1.5E+2", 150.0), ("-2.5e-1", -0.25)]
)
def test_numbers_in_exponent_form_are_numbers(tmp_path: Path, text: str, value: float) -> None:
    path = tmp_path / "numbers.yaml"
    path.write_text(f"x: {text}\n")
    content = configfile.read_yaml(path)
    assert isinstance(content, dict) and float(content["x"]) == value and not isinstance(content["x"], str)


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("grpo.kl_cof", "0.02", ["grpo.kl_cof", "'0.02'", "nearest is grpo.kl_coef"]),
        ("kl_coef", "0.02", ["kl_coef", "nearest is grpo.kl_coef"]),
        ("grpo.objective.kl_coef", "0.02", ["nearest is grpo.kl_coef"]),
        ("model.mla.num_head", "4", ["model.mla.num_head", "nearest is model.mla.num_heads"]),
        ("sft.rows.x", "4", ["sft.rows.x", "not a key"]),
        ("grpo.kl_coef", "high", ["grpo.kl_coef", "'high'", "a finite number"]),
        ("grpo.kl_coef", ".nan", ["grpo.kl_coef", "nan", "a finite number"]),
        ("grpo.steps", "1.5", ["grpo.steps", "1.5", "a whole number"]),
        ("grpo.steps", "true", ["grpo.steps", "true", "a whole number"]),
        ("grpo.steps", "null", ["grpo.steps", "null", "a whole number"]),
        ("logging.plots", "1", ["logging.plots", "1", "true or false"]),
        ("grpo.policy.aggregation", "token_men", ["token_men", "token_mean, sequence_mean", "mean token_mean"]),
        ("sft.optimizer", "fast", ["sft.optimizer", "'fast'", "section"]),
        ("data.tokenizer.eos", "<eos>", ["data.tokenizer.eos", "'<eos>'", "a list, each item text"]),
        ("data.tokenizer.eos", "[a, 1]", ["data.tokenizer.eos[1]", "1", "text"]),
        ("rewards.extras", "{f: high}", ["rewards.extras.f", "'high'", "a finite number"]),
        ("grpo.steps", "[", ["grpo.steps", "'['", "a whole number"]),
    ],
)
def test_wrong_option_names_key_value_rule_and_nearest_key(key: str, text: str, words: list[str]) -> None:
    message = option_refusal(key, text)
    assert message.startswith("command line: ")
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grpo:\n  optimizer:\n    learning_rte: 1e-4\n", ["grpo.optimizer.learning_rte", "0.0001", "learning_rate"]),
        ("seed: 1\nmesh: 8x8\nseed: 2\n", ["line 3", "'seed'", "twice"]),
        ("grpo:\n  steps: 1\n  steps: 1\n", ["line 3", "'steps'", "twice"]),
        ("seed: [1, 2", ["line 1"]),
        ("a: b: c\n", ["line 1"]),
        ("", ["empty"]),
        ("# only a comment\n", ["empty"]),
        ("[1, 2]\n", ["[1, 2]", "mapping"]),
        ("just text\n", ["'just text'", "mapping"]),
        ("sft:\n", ["sft", "null", "Leave the line out"]),
        ("mesh: 8\n", ["mesh", "8", "text", "quotes"]),
        ("run_dir: no\n", ["run_dir", "false", "text", "quotes"]),
        ("seed: '1'\n", ["seed", "'1'", "a whole number"]),
        ("1: 2\n", ["1", "not a key"]),
        ("wibble: 1\n", ["wibble", "keys here are seed, mesh"]),
        (b"seed: \xff\n", ["UTF-8"]),
    ],
)
def test_wrong_file_is_one_message_naming_the_place(tmp_path: Path, text: str | bytes, words: list[str]) -> None:
    message = refusal(tmp_path, text)
    for word in words:
        assert word in message


def test_missing_required_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: {vocab_size: 32, embed_dim: 8, mlp_dim: 8, gqa: {num_heads: 2, num_kv_heads: 1}}\n")
    with pytest.raises(ConfigError, match=r"model\.num_layers is not given"):
        configfile.load(path)
    with pytest.raises(ConfigError, match=r"model\.gqa\.head_dim is not given"):
        configfile.load(path, [("model.num_layers", "1")])


def test_missing_file_lists_those_that_are_there() -> None:
    with pytest.raises(ConfigError, match=r"smok\.yaml: there is no such .*smoke\.yaml"):
        configfile.load(CONFIGS / "smok.yaml")


def test_directory_in_place_of_a_file_points_to_the_saved_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a directory.*config\.yaml"):
        configfile.load(tmp_path)


def test_merged_mapping_may_repeat_a_key(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("base: &base {a: 1, b: 2}\nx:\n  <<: *base\n  a: 3\n")
    content = configfile.read_yaml(path)
    assert isinstance(content, dict) and content["x"] == {"a": 3, "b": 2}
