"""The options of a run: --config, --recipe, --resume and the like, and --KEY VALUE for every key of the configuration."""

import dataclasses
import difflib
import textwrap
from collections.abc import Sequence
from pathlib import Path

from grpo_jax.training import schema
from grpo_jax.training.config import RunConfig
from grpo_jax.training.configfile import COMMAND_LINE
from grpo_jax.training.recipes import RECIPES, REPLACED
from grpo_jax.training.schema import ConfigError

FLAGS = {
    "config": "A YAML file with any of the keys below; options go over it.",
    "recipe": "A published recipe, one of those below: its keys go over the file, options over its keys. What the file has "
    f"in {', '.join(REPLACED)} is dropped, the rest of the file stays where the recipe does not set it.",
    "resume": "Go on with the run in run_dir, by the configuration saved there unless --config names another.",
    "print_config": "Print the whole configuration as YAML and end.",
    "help": "Print this and end.",
}

# The flags that take a value: what it is called and what it must be.
VALUED = {"config": ("FILE", "the path of a YAML file"), "recipe": ("NAME", f"one of {', '.join(RECIPES)}")}

WIDTH = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What a command line asks for.

    Attributes:
        config: the file of --config; None where there is none.
        recipe: the name of --recipe, not yet checked; None where there is none.
        resume: whether --resume is given.
        print_config: whether --print_config is given.
        help: whether --help is given.
        values: dotted keys and their values as text, in order.
    """

    config: Path | None = None
    recipe: str | None = None
    resume: bool = False
    print_config: bool = False
    help: bool = False
    values: tuple[tuple[str, str], ...] = ()


def parse_options(argv: Sequence[str]) -> Options:
    """Splits a command line; keys are checked, values are not yet.

    Raises:
        ConfigError: an option is unknown, lacks its value, or is no option at all.
    """
    flags = dict.fromkeys(("resume", "print_config", "help"), False)
    named: dict[str, str] = {}
    values: list[tuple[str, str]] = []
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        if argument == "-h":
            argument = "--help"
        if not argument.startswith("--") or argument == "--":
            raise ConfigError(
                f"{COMMAND_LINE}: {argument!r} is no option. Options are --KEY VALUE; a file is named by --config, a "
                "run's directory by --run_dir"
            )
        name, equals, text = argument[2:].partition("=")
        if name in flags:
            if equals:
                raise ConfigError(f"{COMMAND_LINE}: --{name} takes no value, given {text!r}. Give it alone or leave it out")
            flags[name] = True
            continue
        expected = VALUED[name][1] if name in VALUED else _expected(name, text if equals else (rest or [""])[0])
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"{COMMAND_LINE}: --{name} lacks its value, {expected}")
            text = rest.pop(0)
        if name not in VALUED:
            values.append((name, text))
        elif name not in named:
            named[name] = text
        else:
            raise ConfigError(f"{COMMAND_LINE}: --{name} is given twice, {named[name]!r} and {text!r}. Keep one")
    config = Path(named["config"]) if "config" in named else None
    return Options(config=config, recipe=named.get("recipe"), values=tuple(values), **flags)


def _expected(name: str, text: str) -> str:
    """What the value of a key must be; refuses an unknown key."""
    near = difflib.get_close_matches(name, FLAGS, 1, cutoff=0.75)
    if near and name not in {key.path for key in schema.keys(RunConfig)}:
        raise ConfigError(f"{COMMAND_LINE}: --{name} is no option. The nearest is --{near[0]}")
    return schema.describe(schema.located(RunConfig, name, text, COMMAND_LINE)[0])


def help_text(program: str) -> str:
    """All options, their types, defaults and meanings."""
    lines = [f"usage: {program} [--config FILE] [--recipe NAME] [--resume] [--KEY VALUE …]", ""]
    lines += [
        _entry(f"--{name}" + (f" {VALUED[name][0]}" if name in VALUED else ""), about) for name, about in FLAGS.items()
    ]
    lines += ["", "Recipes (docs/recipes.md), for --recipe NAME:"]
    lines += [_entry(name, f"{recipe.summary} (arXiv {recipe.paper})") for name, recipe in RECIPES.items()]
    lines += ["", "Keys of the configuration, in a YAML file nested, here dotted (--grpo.kl_coef 0.02):"]
    keys = list(schema.keys(RunConfig))
    for section in (None, *(key for key in keys if key.section is not None)):
        parent = "" if section is None else section.path
        if section is not None:
            null = " (null leaves it out)" if schema.is_optional(section.annotation) else ""
            lines += ["", *textwrap.wrap(f"{section.path}: {section.doc}{null}", WIDTH)]
        values = [key for key in keys if key.section is None and key.path.rpartition(".")[0] == parent]
        lines += [_entry(f"--{key.path}", f"{key.doc} ({_rule(key)})") for key in values]
    return "\n".join(lines)


def _rule(key: schema.Key) -> str:
    default = "required" if key.default is dataclasses.MISSING else f"default {schema.shown(schema.plain(key.default))}"
    return f"{schema.describe(key.annotation)}; {default}"


def _entry(title: str, about: str) -> str:
    return f"  {title}\n" + textwrap.fill(
        about, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
    )
