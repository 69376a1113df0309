"""The rules that span the sections of a run's configuration: what each section alone cannot know to be impossible."""

import difflib
import math

from grpo_jax.data import TASKS
from grpo_jax.model import check_divisible
from grpo_jax.training.config import RunConfig, TokenizerConfig
from grpo_jax.training.schedules import check_schedules
from grpo_jax.training.schema import ConfigError

# The tasks of grpo_jax.data.TASKS that read data.path.
FILE_TASKS = ("gsm8k", "humaneval", "jsonl", "math")
# Those that make their own.
MADE_TASKS = ("arithmetic", "reasoning_gym")


def check(config: RunConfig) -> None:
    """Raises ConfigError for the first combination of sections that cannot be run.

    Needs no device: whether the machine has the mesh's devices is `grpo_jax.parallel.ensure_devices`' to say, and what
    depends on the vocabulary is checked when the tokenizer is known.
    """
    for rule in _RULES:
        rule(config)


def check_vocabulary(config: RunConfig, vocab_size: int) -> None:
    """Raises ConfigError where the model's embedding has no row for some id of the tokenizer.

    Args:
        config: the run.
        vocab_size: the tokenizer's largest id + 1.
    """
    if config.model is not None:
        _refuse_unless(
            config.model.vocab_size >= vocab_size,
            f"model.vocab_size is {config.model.vocab_size}, but it must be at least {vocab_size}, the number of the "
            "tokenizer's ids. It may be larger, so that the mesh divides it",
        )
    size = vocab_size if config.model is None else config.model.vocab_size
    for key, sampler in (("rollout", config.rollout.sampler), ("evaluation", config.evaluation.sampler)):
        _refuse_unless(
            sampler.top_k is None or sampler.top_k <= size,
            f"{key}.sampler.top_k is {sampler.top_k}, but it must be at most {size}, the size of the vocabulary. Lower it, "
            "or set it to null to keep all tokens",
        )
    _refuse_unless(
        config.grpo.steps == 0 or config.rollout.sampler.top_k != 1,
        "rollout.sampler.top_k is 1, but it must be at least 2 for GRPO: completions of one prompt would all be the same, "
        "so every advantage would be 0",
    )


def _refuse_unless(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _check_model(config: RunConfig) -> None:
    _refuse_unless(
        config.model is not None or config.pretrained is not None,
        "model and pretrained are both null, but a run needs one of them. Describe an architecture under model, "
        "or give pretrained.path; configs/ has an example of each (--config configs/FILE.yaml)",
    )
    _refuse_unless(
        config.model is None or config.pretrained is None,
        "model and pretrained are both given, but a pretrained file brings its own architecture. "
        "Set one of the two to null (--model null or --pretrained null)",
    )
    _refuse_unless(
        config.pretrained is None or config.data.tokenizer == TokenizerConfig(),
        f"data.tokenizer is {config.data.tokenizer}, but pretrained.path brings the tokenizer that its embeddings were "
        "trained with. Leave the section data.tokenizer out",
    )
    if config.model is not None:
        try:
            check_divisible(config.model, config.mesh_shape)
        except ValueError as error:
            raise ConfigError(str(error)) from error


def _check_data(config: RunConfig) -> None:
    data = config.data
    if data.task not in TASKS and ":" not in data.task:
        near = difflib.get_close_matches(data.task, TASKS, 1)
        raise ConfigError(
            f"data.task is {data.task!r}, but it must be one of {', '.join(TASKS)}, or a dotted path like "
            f"package.module:factory" + (f". Did you mean {near[0]}?" if near else "")
        )
    _refuse_unless(
        data.task not in FILE_TASKS or data.path is not None or data.options.get("hub") is not None,
        f"data.path is null, but the task {data.task} reads its problems from a file. Give it with --data.path FILE, or "
        "name a data set of the Hugging Face Hub with --data.options.hub",
    )
    _refuse_unless(
        data.task not in MADE_TASKS or data.path is None,
        f"data.path is {data.path!r}, but the task {data.task} generates its problems and reads no file. Leave it out, or "
        f"set data.task to one of {', '.join(FILE_TASKS)}",
    )
    _refuse_unless(
        data.task == "arithmetic"
        or config.pretrained is not None
        or data.tokenizer.path is not None
        or data.tokenizer.alphabet is not None,
        f"data.tokenizer.alphabet is null, but the alphabet of the task arithmetic need not hold the characters of "
        f"{data.task}. Give data.tokenizer.alphabet, or data.tokenizer.path with data.tokenizer.eos",
    )


def _check_curriculum(config: RunConfig) -> None:
    _refuse_unless(
        config.data.curriculum.mode != "difficulty" or config.grpo.steps > 0,
        "data.curriculum.mode is 'difficulty', but grpo.steps is 0, and only the rollouts of GRPO say what is difficult. "
        "Set it to mixed",
    )
    for phase, steps, key, every in (
        ("SFT", config.sft.steps, "evaluation.sft_every", config.evaluation.sft_every),
        ("GRPO", config.grpo.steps, "evaluation.every", config.evaluation.every),
    ):
        _refuse_unless(
            config.data.curriculum.mode != "sequential" or steps == 0 or every > 0,
            f"{key} is 0, but {phase} with a sequential curriculum advances on the tests that it asks for. Set it to the "
            f"number of {phase} steps between two tests, or data.curriculum.mode to mixed",
        )


def _check_phases(config: RunConfig) -> None:
    _refuse_unless(
        config.sft.steps + config.grpo.steps > 0,
        "sft.steps and grpo.steps are both 0, so nothing would be trained. Set at least one above 0",
    )
    for section, steps, optimizer in (
        ("sft", config.sft.steps, config.sft.optimizer),
        ("grpo", config.grpo.steps * config.grpo.updates_a_step, config.grpo.optimizer),
    ):
        _refuse_unless(
            steps == 0 or optimizer.warmup_steps <= steps,
            f"{section}.optimizer.warmup_steps is {optimizer.warmup_steps}, but it must be at most the phase's "
            f"{steps} updates: the learning rate would never reach its peak. Lower it or raise {section}.steps",
        )


def _check_sampling(config: RunConfig) -> None:
    _refuse_unless(
        config.grpo.steps == 0 or config.rollout.sampler.temperature > 0,
        "rollout.sampler.temperature is 0, but it must be above 0 for GRPO: greedy completions of one prompt are all "
        "the same, so every advantage would be 0",
    )
    _refuse_unless(
        config.evaluation.sampler.temperature > 0,
        "evaluation.sampler.temperature is 0, but it must be above 0: it is the sampled accuracy's, and greedy "
        "decoding is tested besides it in any case",
    )


def _check_rows(config: RunConfig) -> None:
    evaluation = config.evaluation
    _refuse_unless(
        evaluation.rows % evaluation.samples == 0,
        f"evaluation.rows is {evaluation.rows}, but it must be divisible by evaluation.samples, {evaluation.samples}: "
        f"the samples of a problem are drawn at once. The nearest that fit are "
        f"{_neighbours(evaluation.rows, evaluation.samples)}",
    )
    shards = config.mesh_shape.row_shards
    sft, grpo = config.sft, config.grpo
    for steps, rows, name, divisors in (
        (sft.steps, sft.rows, "sft.rows", {"sft.microbatches": sft.microbatches}),
        (
            grpo.steps,
            grpo.rows,
            "grpo.prompts × grpo.group_size",
            {"grpo.minibatches": grpo.minibatches, "grpo.microbatches": grpo.microbatches},
        ),
        (1, config.evaluation.rows, "evaluation.rows", {}),
    ):
        parts = math.prod(divisors.values()) * shards
        named = "".join(f"{key} {value} × " for key, value in divisors.items() if key != "grpo.minibatches" or value > 1)
        _refuse_unless(
            steps == 0 or rows % parts == 0,
            f"{name} is {rows}, but it must be divisible by {parts} ({named}the {shards} row shards of mesh "
            f"{config.mesh!r}): every device takes equally many rows. The nearest that fit are "
            f"{_neighbours(rows, parts)}",
        )
    chunks, prompts = config.rollout.chunks, grpo.prompts
    _refuse_unless(
        grpo.steps == 0 or (prompts % chunks == 0 and grpo.rows // chunks % shards == 0),
        f"rollout.chunks is {chunks}, but it must divide grpo.prompts, {prompts}, into equal parts whose rows the {shards} "
        f"row shards of mesh {config.mesh!r} share equally. Lower it to a divisor, or to 1",
    )


def _neighbours(rows: int, parts: int) -> str:
    below = rows // parts * parts
    return " and ".join(str(value) for value in (below, below + parts) if value > 0)


def _check_schedules(config: RunConfig) -> None:
    grpo = config.grpo
    if grpo.steps == 0:
        return
    try:
        check_schedules(config.schedules, config.coefficients, grpo.steps, grpo.rows)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    scheduled = config.schedules.entropy_coef.kind != "constant"
    _refuse_unless(
        grpo.has_entropy_bonus or not scheduled,
        f"schedules.entropy_coef.kind is {config.schedules.entropy_coef.kind!r}, but grpo.entropy_coef is null: there is no "
        "entropy bonus to weigh. Set grpo.entropy_coef to where the schedule starts, 0 for entropy_target",
    )
    _refuse_unless(
        grpo.entropy_coef != 0 or scheduled,
        "grpo.entropy_coef is 0.0, but with a constant schedule it must be above 0 or null: a bonus of weight 0 changes "
        "nothing. Set schedules.entropy_coef.kind to entropy_target to let it rise",
    )


def _check_alarms(config: RunConfig) -> None:
    raising = [alarm for alarm, action in config.alarm_actions.items() if action == "raise_kl"]
    _refuse_unless(
        config.grpo.steps == 0 or not raising or config.grpo.kl_coef > 0,
        f"on_alarm is {config.on_alarm!r}, but grpo.kl_coef is 0: there is no KL coefficient to raise, nor a reference to "
        "hold on to. Set grpo.kl_coef above 0, or choose another action",
    )
    named = config.alarm_actions if "=" in config.on_alarm else {}
    _refuse_unless(
        config.grpo.steps == 0 or "kl_runaway" not in named or config.grpo.kl_coef > 0,
        f"on_alarm is {config.on_alarm!r}, but grpo.kl_coef is 0: without a reference there is no KL, and kl_runaway is "
        "never raised. Leave it out, or set grpo.kl_coef above 0",
    )
    _refuse_unless(
        "sampler_mismatch" not in named or config.grpo.off_policy.old_logprobs != "sampler",
        f"on_alarm is {config.on_alarm!r}, but grpo.off_policy.old_logprobs is sampler: the two that sampler_mismatch "
        "compares are the same. Leave it out, or set old_logprobs to recomputed",
    )
    _refuse_unless(
        not config.alarm_actions or config.grpo.steps == 0 or config.monitor.window <= config.grpo.steps,
        f"on_alarm is {config.on_alarm!r}, but monitor.window is {config.monitor.window} and grpo.steps "
        f"{config.grpo.steps}: no alarm is raised before a window has passed. Lower monitor.window or leave on_alarm out",
    )
    _refuse_unless(
        config.grpo.steps > 0 or not config.alarm_actions,
        f"on_alarm is {config.on_alarm!r}, but grpo.steps is 0: the monitor watches GRPO. Leave it out",
    )


_RULES = (
    _check_curriculum,
    _check_model,
    _check_data,
    _check_phases,
    _check_sampling,
    _check_rows,
    _check_schedules,
    _check_alarms,
)
