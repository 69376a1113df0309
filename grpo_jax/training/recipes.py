"""Published recipes: for each paper the keys of a configuration that make its algorithm.

A recipe is a layer between a file and the options of the command line. It sets how a rollout becomes an update: policy
term, aggregation, advantages, KL, entropy, updates per rollout, and what is done with groups and rows. What goes with
the size of a model and its data (learning rate, prompts, group size, lengths) it leaves to the file; `at_scale` says
what the paper took. What a paper does not state is not set, and neither is what would have no effect: with one update
per rollout the ratio is 1, so that a clip range stays the term's own.

In `at_scale` † marks a figure read in a secondary source and ‡ one computed from the paper's other figures;
docs/recipes.md names the sources.
"""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

from grpo_jax.training import schema
from grpo_jax.training.config import RunConfig
from grpo_jax.training.schema import ConfigError, Tree

__all__ = ["RECIPES", "REPLACED", "Recipe", "find_recipe", "with_recipe"]

REPLACED = ("grpo.policy", "grpo.advantage", "grpo.kl", "grpo.off_policy")
"""The sections that are the recipe's alone: what a file gives there is dropped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """An entry of the table.

    Attributes:
        paper: arXiv number.
        summary: what it is, in a line.
        settings: from the most tokens of a completion, the keys that it sets, as a tree.
        differs: what the paper does that this does not reproduce.
        at_scale: what the paper used for its models and data.
    """

    paper: str
    summary: str
    settings: Callable[[int], Tree]
    differs: str
    at_scale: str


def _updates(minibatches: int) -> Tree:
    """One pass over a rollout, in so many minibatches."""
    return {"updates_per_rollout": 1, "minibatches": minibatches}


def _share(max_completion_tokens: int, part: int, whole: int) -> int:
    """A paper's `part` of its limit of `whole` tokens, for another limit."""
    return max(1, round(max_completion_tokens * part / whole))


RECIPES: dict[str, Recipe] = {
    "deepseek_math": Recipe(
        paper="2402.03300",
        summary="GRPO as it was introduced: one on-policy update per rollout, KL of weight 0.04 in the loss.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "grpo", "aggregation": "sequence_mean"},
                "advantage": {"estimator": "grpo"},
                "kl_coef": 0.04,
                "kl": {"estimator": "k3", "place": "loss"},
                **_updates(1),
            }
        },
        differs="The paper states no clip range; with one update per rollout none acts.",
        at_scale="16 prompts‡ × 64 completions, learning rate 1e-6, completions up to 1024 tokens.",
    ),
    "r1": Recipe(
        paper="2501.12948",
        summary="DeepSeek-R1, first RL stage: GRPO with a clip range of 10, weak KL, reference renewed every 400 steps.",
        settings=lambda _: {
            "grpo": {
                # A range of 10 below 1 is no bound: no ratio is below 0.
                "policy": {"term": "grpo", "aggregation": "sequence_mean", "clip_low": 1.0, "clip_high": 10.0},
                "advantage": {"estimator": "grpo"},
                "kl_coef": 0.001,
                "kl": {"estimator": "k3", "place": "loss", "refresh_every": 400},
                **_updates(16),
            }
        },
        differs="The paper's equation 1 has one ratio for each completion; here it is GRPO's, one for each token. "
        "R1-Zero, whose clip range is not stated, and the second RL stage are not reproduced.",
        at_scale="512 prompts × 16 completions, minibatches of 512 rows, learning rate 3e-6, temperature 1.0, completions "
        "up to 32768 tokens (R1-Zero: 65536 from step 8200 on, 10400 steps).",
    ),
    "dapo": Recipe(
        paper="2503.14476",
        summary="DAPO: a higher upper clip, a mean over tokens, dynamic sampling, soft overlong punishment, no KL.",
        settings=lambda limit: {
            "grpo": {
                "policy": {"term": "dapo", "aggregation": "token_mean", "clip_low": 0.2, "clip_high": 0.28},
                "advantage": {"estimator": "grpo"},
                "kl_coef": 0.0,
                "entropy_coef": None,
                **_updates(16),
                "groups": {"dead": "refill", "mask_truncated": False},
            },
            "rewards": {"overlong": {"buffer": _share(limit, 4096, 20480), "factor": 1.0, "limit": None}},
        },
        differs="The authors sample three times the prompts of a step at once; here every refill samples as many as a "
        "step has, at most grpo.groups.max_refills times, and what is missing then is left out. Their script "
        "punishes truncated rows and does not mask them, and so does this; masking was an earlier step of the "
        "paper's Table 1.",
        at_scale="512 prompts × 16 completions, minibatches of 512 rows, learning rate 1e-6 after a warm-up of 20 "
        "rollouts, weight decay 0.1, gradient norm 1.0, temperature 1.0, completions up to 20480 tokens, of which "
        "4096 buffer.",
    ),
    "dr_grpo": Recipe(
        paper="2503.20783",
        summary="Dr. GRPO: no division by the group's standard deviation nor by the row's length, no KL.",
        settings=lambda _: {
            "grpo": {
                # The fixed length, left open, is the most tokens of a completion, as in the paper.
                "policy": {"term": "dr_grpo", "aggregation": "sequence_sum_fixed", "clip_low": 0.2, "clip_high": 0.2},
                "advantage": {"estimator": "dr_grpo"},
                "kl_coef": 0.0,
                **_updates(8),
                "groups": {"dead": "keep"},
            }
        },
        differs="Code built on the authors' rewards a completion that the limit cuts off with 0; here it is judged as it "
        "stands.",
        at_scale="128 prompts × 8 completions, minibatches of 128 rows‡, constant learning rate 1e-6, no weight decay, "
        "gradient norm 1.0, Adam 0.9/0.95, temperature 1.0, completions up to 3000 tokens.",
    ),
    "gspo": Recipe(
        paper="2507.18071",
        summary="GSPO: the ratio of the whole completion, per token, clipped within 3e-4 and 4e-4, no KL.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "gspo", "aggregation": "sequence_mean", "clip_low": 3e-4, "clip_high": 4e-4},
                "advantage": {"estimator": "grpo"},
                "kl_coef": 0.0,
                **_updates(4),
            }
        },
        differs="Nothing is left out. The clip range is sensitive to scale: for its 8B model ScaleRL (2510.13786) found "
        "one about ten times as wide better.",
        at_scale="4 minibatches; group size, prompts, learning rate and lengths are not stated.",
    ),
    "scale_rl": Recipe(
        paper="2510.13786",
        summary="ScaleRL: CISPO against the sampler's own log-probs, advantages over the batch's deviation, no KL.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "cispo", "aggregation": "token_mean", "ratio_cap": 5.0},
                "advantage": {"estimator": "lite_ppo"},
                "kl_coef": 0.0,
                "off_policy": {"old_logprobs": "sampler", "correction": "none"},
                **_updates(1),
                "groups": {"dead": "drop", "mask_truncated": True},
            },
            "rewards": {"overlong": None},
        },
        differs="There is no stream of rollouts up to 8 updates old (PipelineRL): a rollout is sampled and trained on "
        "once. The paper averages the tokens of each prompt and then the prompts; here all tokens of the batch "
        "count alike. It divides by the standard deviation of the batch's advantages; here it is that of the "
        "batch's rewards. Prompts solved 9 times in 10 stay in the data, and no completion is made to end its "
        "thinking. Caps of 4, 5 and 8 did equally well.",
        at_scale="48 prompts × 16 completions (large runs 512 and 2048 rows), learning rate 5e-7 after a warm-up of 100 "
        "steps, weight decay 0.01, Adam eps 1e-15, rewards of ±1, completions up to 12288 + 2048 tokens (long run "
        "32768).",
    ),
    "lite_ppo": Recipe(
        paper="2508.08221",
        summary="Lite PPO: the group's mean and the batch's standard deviation, a mean over tokens, no KL.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "grpo", "aggregation": "token_mean"},
                "advantage": {"estimator": "lite_ppo"},
                "kl_coef": 0.0,
                **_updates(8),
            }
        },
        differs="The paper's clip range was not found; the term's own, 0.2, holds.",
        at_scale="128 prompts‡ × 8 completions†, minibatches of 128 rows†, learning rate 1e-6†, temperature 0.99†, top-p "
        "0.99†, top-k 100†.",
    ),
    "rloo": Recipe(
        paper="2402.14740",
        summary="RLOO: plain REINFORCE against the mean of the group's other rows, KL in the reward.",
        settings=lambda _: {
            "grpo": {
                # A row's log-probs are summed, not averaged, and rows are averaged.
                "policy": {"term": "grpo", "aggregation": "sequence_sum_fixed", "fixed_length": 1},
                "advantage": {"estimator": "rloo"},
                "kl_coef": 0.03,
                "kl": {"estimator": "k1", "place": "reward"},
                **_updates(1),
            }
        },
        differs="The paper takes 2 updates per rollout without a ratio; here it is one, the only case in which the ratio "
        "of the policy term is 1 and nothing is clipped. The KL weight is that for TL;DR; that for HH is 0.10.",
        at_scale="Groups of 2 or 4†, 512 rows per update†, learning rate 1e-6† (TL;DR).",
    ),
    "reinforce_pp": Recipe(
        paper="2501.03262",
        summary="REINFORCE++: advantages over the mean and deviation of the whole batch, KL in the reward.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "grpo", "aggregation": "sequence_mean"},
                "advantage": {"estimator": "reinforce_pp"},
                "kl_coef": 0.001,
                "kl": {"estimator": "k1", "place": "reward"},
            }
        },
        differs="The paper takes the KL from the reward of each token, which then counts for the tokens before it; here "
        "the sum over the row counts for all its tokens. The number of updates per rollout was not found and "
        "stays the file's; so does the group size, which is 1 in the paper. The clip range, 0.2 in the paper, is "
        "the term's own. REINFORCE++-baseline is not reproduced.",
        at_scale="Groups of 1†; prompts, learning rate and lengths were not found.",
    ),
    "opo": Recipe(
        paper="2505.23585",
        summary="OPO: exactly on-policy, the length-weighted mean of the group as baseline, neither KL nor entropy bonus.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "grpo"},
                "advantage": {"estimator": "opo"},
                "kl_coef": 0.0,
                "entropy_coef": None,
                **_updates(1),
            }
        },
        differs="How losses are summed was not found; the term's own aggregation, sequence_mean, holds.",
        at_scale="One update on the whole rollout; group size, prompts, learning rate and lengths were not found.",
    ),
    "gdpo": Recipe(
        paper="2601.05242",
        summary="GDPO, as for math and code: each reward normalised in its group, then their sum over the batch.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "dapo", "aggregation": "token_mean", "clip_low": 0.2, "clip_high": 0.28},
                "advantage": {"estimator": "gdpo"},
                "kl_coef": 0.0005,
                "kl": {"place": "loss"},
                **_updates(8),
                "groups": {"dead": "refill"},
            }
        },
        differs="The paper's second reward, on length, is the file's to name (rewards.extras). The authors' code "
        "normalises the sum over the tokens of the batch; here it is over the rows. The KL estimator was not "
        "found, k3 holds. The paper's runs on tool use have 4 minibatches and a KL weight of 0.001.",
        at_scale="512 prompts × 16 completions†, minibatches of 1024 rows‡, learning rate 1e-6†, completions up to 8000 "
        "tokens† (tool use: groups of 4, minibatches of 512 rows‡, 1024 tokens).",
    ),
    "max_rl": Recipe(
        paper="2602.02710",
        summary="MaxRL: advantages divided by the group's mean reward, one on-policy update, no KL.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "grpo"},
                "advantage": {"estimator": "max_rl"},
                "kl_coef": 0.0,
                **_updates(1),
                "groups": {"dead": "keep"},
            }
        },
        differs="The authors' code adds 1e-6 to the mean that divides; here nothing is added, and a group whose mean is 0 "
        "has advantages of 0. How losses are summed was not found; the term's own aggregation, sequence_mean, "
        "holds.",
        at_scale="Qwen3: 256 prompts × 16 completions, learning rate 1e-6, gradient norm 0.3, completions up to 4096 "
        "tokens. SmolLM2-360M on GSM8K: 256 prompts × 128 completions, learning rate 1e-5, 2048 tokens.",
    ),
    "luspo": Recipe(
        paper="2602.05261",
        summary="LUSPO: GSPO's loss of a completion times its length, clipped within 2e-3 and 2.5e-3.",
        settings=lambda _: {
            "grpo": {
                # The clip range is the term's own: set here it would be refused with one update per rollout.
                "policy": {"term": "luspo"},
                "advantage": {"estimator": "grpo"},
            }
        },
        differs="KL and updates per rollout were not found and stay the file's; with one update the clip range does not "
        "act.",
        at_scale="Not found.",
    ),
    "sapo": Recipe(
        paper="2511.20347",
        summary="SAPO: a soft gate on the ratio in place of a clip, closing faster for negative advantages.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "sapo", "aggregation": "sequence_mean", "gate_positive": 1.0, "gate_negative": 1.05},
                "advantage": {"estimator": "grpo"},
                **_updates(4),
            }
        },
        differs="The KL was not found and stays the file's.",
        at_scale="4 minibatches†; group size, prompts, learning rate and lengths were not found.",
    ),
    "gmpo": Recipe(
        paper="2507.20673",
        summary="GMPO: the geometric mean of the tokens' ratios, each clipped within a factor of exp(0.4), no KL.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "gmpo", "aggregation": "sequence_mean", "log_clip_low": 0.4, "log_clip_high": 0.4},
                "advantage": {"estimator": "grpo"},
                "kl_coef": 0.0,
                **_updates(8),
                "groups": {"dead": "keep"},
            }
        },
        differs="The authors' code rewards a completion that the limit cuts off with 0; here it is judged as it stands.",
        at_scale="128 prompts × 8 completions, minibatches of 128 rows†, constant learning rate 1e-6, temperature 1.0, "
        "completions up to 3000 tokens.",
    ),
    "clip_cov": Recipe(
        paper="2505.22617",
        summary="Clip-Cov: no gradient from a few random tokens of those that lower the entropy most.",
        settings=lambda _: {
            "grpo": {
                "policy": {
                    "term": "clip_cov",
                    "clip_low": 1.0,
                    "clip_high": 1.0,
                    "cov_ratio": 2e-4,
                    "cov_low": 1.0,
                    "cov_high": 5.0,
                },
                "advantage": {"estimator": "grpo"},
                **_updates(8),
                "groups": {"dead": "drop"},
            }
        },
        differs="Prompts whose completions are all right or all wrong are dropped in the paper; here those whose rewards "
        "all agree. The KL to the reference was not found and stays the file's.",
        at_scale="256 prompts × 8 completions, minibatches of 256 rows, temperature 1.0, completions up to 8192 tokens.",
    ),
    "kl_cov": Recipe(
        paper="2505.22617",
        summary="KL-Cov: the tokens that lower the entropy most are held to the old policy, no KL to a reference.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "kl_cov", "cov_ratio": 2e-3, "cov_kl_coef": 1.0},
                "advantage": {"estimator": "grpo"},
                "kl_coef": 0.0,
                **_updates(8),
                "groups": {"dead": "drop"},
            }
        },
        differs="Prompts whose completions are all right or all wrong are dropped in the paper; here those whose rewards "
        "all agree. The share of tokens is that of the 7B model; that of the 32B model is 2e-4.",
        at_scale="256 prompts × 8 completions, minibatches of 256 rows, temperature 1.0, completions up to 8192 tokens.",
    ),
    "skywork_or1": Recipe(
        paper="2505.22312",
        summary="Skywork-OR1: on-policy, a mean over tokens, an entropy bonus that holds the entropy at 0.2, no KL.",
        settings=lambda _: {
            "grpo": {
                "policy": {"term": "grpo", "aggregation": "token_mean"},
                "advantage": {"estimator": "grpo"},
                "kl_coef": 0.0,
                "entropy_coef": 0.0,
                **_updates(1),
                "groups": {"dead": "drop", "mask_truncated": False},
            },
            "rewards": {"overlong": None},
            "schedules": {"entropy_coef": {"kind": "entropy_target", "target": 0.2, "step_size": 1e-4, "ceiling": 0.005}},
        },
        differs="The coefficient follows the entropy of the step before, in the paper that of the rollout itself. The "
        "limit on length does not grow in stages, and solved prompts are not taken out between them.",
        at_scale="256, then 160 prompts × 16, then 32 completions, constant learning rate 1e-6, temperature 1.0, context "
        "16K, then 32K (7B) or 24K (32B); Math-7B: 2 minibatches, context 8K, 16K, 32K.",
    ),
}
"""Name to recipe. docs/recipes.md has them side by side."""


def find_recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        ConfigError: there is none; names the nearest and all.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name.lower(), RECIPES, 1)
        raise ConfigError(
            f"recipe is {name!r}, but it must be one of {', '.join(RECIPES)}"
            + (f". The nearest is {near[0]}" if near else "")
        )
    return RECIPES[name]


def with_recipe(tree: Tree, name: str, max_completion_tokens: int) -> Tree:
    """A checked tree with a recipe over it.

    The sections of `REPLACED` are the recipe's alone. Everywhere else the tree keeps what the recipe does not set, but
    for options of a choice that the recipe makes: the schedule of a coefficient that it sets, and the sizes of another
    treatment of dead groups.

    Args:
        tree: what a file gives.
        name: the recipe's.
        max_completion_tokens: the most tokens of a completion in the run.

    Raises:
        ConfigError: there is no such recipe.
    """
    settings = schema.checked(RunConfig, find_recipe(name).settings(max_completion_tokens), f"recipe {name}")
    grpo = settings["grpo"]
    dropped = [*REPLACED, *(f"schedules.{name}" for name in ("kl_coef", "entropy_coef") if name in grpo)]
    dead = grpo.get("groups", {}).get("dead")
    if dead is not None and dead != tree.get("grpo", {}).get("groups", {}).get("dead"):
        dropped += ["grpo.groups.max_refills", "grpo.groups.replay_groups"]
    for path in dropped:
        tree = _without(tree, path.split("."))
    return schema.merged(tree, settings)


def _without(tree: Tree, parts: list[str]) -> Tree:
    first, *rest = parts
    below: Any = tree.get(first)
    if rest:
        return {**tree, first: _without(below, rest)} if isinstance(below, dict) else tree
    return {name: value for name, value in tree.items() if name != first}
