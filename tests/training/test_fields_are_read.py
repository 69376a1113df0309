"""Every key of a configuration is read by what it configures: none is accepted and then ignored.

Reads are recorded at the attributes of the sections' dataclasses while everything that a configuration can ask for is
done once. A read counts where grpo_jax does something with it; one that only checks, prints, saves or compares the
configuration does not.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs

import grpo_jax
from grpo_jax.checkpoint import export_params
from grpo_jax.data import CharacterTokenizer, advance, initial_state, observe, sample_problems
from grpo_jax.data.arithmetic import ALPHABET
from grpo_jax.generation import SamplerConfig
from grpo_jax.generation.sampling import sample_tokens
from grpo_jax.model import (
    GQAConfig,
    MLAConfig,
    ModelConfig,
    RopeConfig,
    YarnConfig,
    abstract_params,
    hidden_states,
    init_params,
)
from grpo_jax.objectives import (
    CORRECTIONS,
    POLICY_TERMS,
    AdvantageConfig,
    GRPOConfig,
    KLConfig,
    OffPolicyConfig,
    PolicyConfig,
    group_advantages,
    grpo_loss,
    select_tokens,
)
from grpo_jax.rewards import (
    CodeConfig,
    CompositeReward,
    CosineLengthConfig,
    LanguageConfig,
    MathConfig,
    OverlongConfig,
    PoolConfig,
    RepetitionConfig,
    RewardConfig,
    RewardInput,
)
from grpo_jax.training import schema
from grpo_jax.training.config import EvaluationConfig, RunConfig
from grpo_jax.training.experiment import build_experiment
from grpo_jax.training.loop import train
from grpo_jax.training.monitor import Monitor, MonitorConfig
from grpo_jax.training.optimizer import OptimizerConfig, make_optimizer
from grpo_jax.training.policy import build_policy
from grpo_jax.training.schedule_kinds import ScheduleConfig
from grpo_jax.training.schedules import (
    SchedulesConfig,
    advance_schedules,
    initial_schedules,
    scheduled_values,
)

PRODUCT = str(Path(grpo_jax.__file__).parent)

# What checks, prints, saves and compares configurations.
NO_USE = tuple(
    f"{PRODUCT}/training/{name}.py" for name in ("schema", "configfile", "run_directory", "rules", "recipes", "validation")
)

# A property that copies every field of the objective, whether anything looks at them or not.
COPIES = ("__post_init__", "objective")

Reads = set[tuple[type, str]]


def sections(cls: type = RunConfig) -> set[type]:
    return {cls, *(key.section for key in schema.keys(cls) if key.section is not None)}


def fields(cls: type) -> Iterable[tuple[type, str]]:
    """Each field of a dataclass and the class that brings it."""
    for field in dataclasses.fields(cls):
        yield next(base for base in cls.__mro__ if field.name in inspect.get_annotations(base)), field.name


def is_used(frame: types.FrameType | None) -> bool:
    """Whether a read from this frame is one that does something."""
    if frame is None or not frame.f_code.co_filename.startswith(PRODUCT):
        return False
    while frame is not None:
        if frame.f_code.co_name in COPIES or frame.f_code.co_filename in NO_USE:
            return False
        frame = frame.f_back
    return True


def recorded(classes: Iterable[type], exercise: Callable[[], object]) -> Reads:
    """The fields of these classes that an exercise reads."""
    reads: Reads = set()

    def recorder(owners: dict[str, tuple[type, str]]) -> Callable[[Any, str], Any]:
        def getattribute(self: Any, name: str) -> Any:
            if name in owners and owners[name] not in reads and is_used(sys._getframe(1)):
                reads.add(owners[name])
            return object.__getattribute__(self, name)

        return getattribute

    with pytest.MonkeyPatch.context() as patch:
        for cls in classes:
            owners = {name: (owner, name) for owner, name in fields(cls)}
            patch.setattr(cls, "__getattribute__", recorder(owners), raising=False)
        exercise()
    return reads


# A run with a part of everything


RUN = (
    "model.param_dtype=float32",
    "sft.steps=2",
    "sft.rows=4",
    "sft.optimizer.schedule=linear",
    "sft.optimizer.end_fraction=0.5",
    "data.options.solution=solution",
    "data.task=jsonl",
    "data.tokenizer.alphabet=0123456789+",
    "data.prompt.user_format={problem}",
    "data.curriculum.mode=difficulty",
    "grpo.steps=3",
    "grpo.groups.dead=replay",
    "grpo.groups.replay_groups=4",
    "grpo.groups.mask_truncated=true",
    "grpo.minibatches=2",
    "grpo.kl.refresh_every=2",
    "grpo.entropy_coef=0",
    "grpo.off_policy.max_staleness=4",
    "rewards.accuracy=tiny_runs:half_hopeless",
    "schedules.kl_coef.kind=adaptive_kl",
    "schedules.kl_coef.target=0.01",
    "schedules.kl_coef.horizon=100",
    "schedules.format_weight.kind=saturation",
    "schedules.termination_weight.kind=linear",
    "schedules.entropy_coef.kind=entropy_target",
    "schedules.entropy_coef.target=9.0",
    "monitor.window=3",
    "monitor.kl_limit=1.0e-9",
    "monitor.kl_floor=1.0e-10",
    "on_alarm=lower_temperature",
    "evaluation.every=2",
    "evaluation.sft_every=1",
    "logging.samples_every=1",
    "logging.samples_groups=1",
    "logging.tensorboard=true",
)


def run(folder: Path) -> None:
    paths = []
    for name, numbers in (("train", range(10, 50)), ("heldout", range(60, 70))):
        path = folder / f"{name}.jsonl"
        lines = [json.dumps({"question": f"{i}+{i}", "answer": 2 * i, "solution": f"{2 * i}"}) for i in numbers]
        path.write_text("\n".join(lines))
        paths.append(path)
    train(tiny_runs.load(folder, f"data.path={paths[0]}", f"data.heldout_path={paths[1]}", *RUN))


def refill(folder: Path) -> None:
    tiny_runs.Steps(tiny_runs.load(folder, "grpo.groups.dead=refill", "grpo.groups.max_refills=1")).next()


# Alternatives, each by the function that a run gives its section to


def objectives() -> None:
    tokens = np.random.default_rng(0).random((4, 6)).astype(np.float32)
    advantages, ones, mask = np.array([1, -1, 1, -1], np.float32), np.ones(4, np.float32), np.ones((4, 6), bool)

    def loss(config: GRPOConfig) -> None:
        selected = select_tokens(config.policy, -tokens, advantages, mask, tokens)
        jax.eval_shape(
            partial(grpo_loss, config), -tokens, -tokens, -tokens, -tokens, advantages, ones, mask, tokens, selected
        )

    for term in POLICY_TERMS:
        loss(GRPOConfig(policy=PolicyConfig(term=term, aggregation="sequence_sum_fixed", fixed_length=6)))
    for correction in CORRECTIONS:
        loss(GRPOConfig(off_policy=OffPolicyConfig(correction=correction, opsm_threshold=0.5)))
    loss(GRPOConfig(kl=KLConfig(estimator="k1", importance_weighted=True), entropy_coef=0.1))
    group_advantages(advantages, 2, AdvantageConfig(baseline="batch_mean", scale="batch_std", ddof=1, epsilon=1e-3))


def models(folder: Path) -> None:
    rope = RopeConfig(theta=100.0, yarn=YarnConfig(factor=2.0, original_max_length=8, attention_factor=1.1))
    attentions = (
        {"mla": MLAConfig(num_heads=2, kv_rank=4, nope_dim=4, rope_dim=4, value_dim=4, q_rank=4, rope=rope)},
        {"gqa": GQAConfig(num_heads=2, num_kv_heads=1, head_dim=4, rope=rope)},
    )
    for attention in attentions:
        model = ModelConfig(
            vocab_size=26, num_layers=2, embed_dim=8, mlp_dim=8, remat="dots", tie_embeddings=False, **attention
        )
        tokens = jax.ShapeDtypeStruct((2, 8), jnp.int32)
        jax.eval_shape(partial(hidden_states, model), abstract_params(model), tokens)
        jax.eval_shape(partial(init_params, model), jax.random.key(0))
    document = {"alphabet": None, "fingerprint": CharacterTokenizer(ALPHABET).fingerprint()}
    export_params(init_params(model, jax.random.key(0)), model, folder / "export", tokenizer=document)
    build_policy(tiny_runs.load(folder, "model=null", f"pretrained.path={folder / 'export'}"))


def tokenizer_file(folder: Path) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<end>": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    options = (
        f"data.tokenizer.path={folder / 'tokenizer.json'}",
        "data.tokenizer.eos=['<end>']",
        "data.prompt.system_prompt=add",
        f"data.prompt.chat_template={template}",
    )
    build_experiment(tiny_runs.load(folder, *options))


def curricula(folder: Path) -> None:
    def drawn(*options: str, accuracy: float = 1.0) -> None:
        config = tiny_runs.load(folder, *(f"data.curriculum.{option}" for option in options), "evaluation.every=1")
        experiment = build_experiment(config)
        task, curriculum = experiment.task, config.data.curriculum
        state = initial_state(task.stages)
        problems = sample_problems(task, curriculum, state, 0, 0, 4)
        state = observe(task, curriculum, state, problems, [accuracy] * 4, 4, 0)
        state = advance(curriculum, state, dict.fromkeys(task.stages, accuracy), 4, 0)
        sample_problems(task, curriculum, state, 0, 1, 4)

    drawn("weights={addition: 2, parentheses: 1}")
    drawn("mode=sequential", "advance_at=0.5", "replay=0.3")
    drawn("mode=difficulty", "floor=0.2", "smoothing=0.5")


def rewards() -> None:
    config = RewardConfig(
        extras={"tiny_runs:short": 0.5},
        overlong=OverlongConfig(buffer=2, limit=6),
        repetition=RepetitionConfig(ngram=2),
        length=CosineLengthConfig(limit=6),
        gates={"format": "accuracy"},
        pool=PoolConfig(workers=1, timeout=60, max_pending=8),
    )
    rows = [
        RewardInput(prompt="1+1", completion=text, reference="2", ids=[1, 1, 1] * tokens, end=end)
        for text, tokens, end in (("<answer>2</answer>", 1, "eos"), ("3", 1, "eos"), ("3", 2, "length"))
    ]
    with CompositeReward(config, 6) as reward:
        reward.score(rows)
    judged_here = PoolConfig(workers=0)
    words = LanguageConfig(min_share=0.9)
    surds = RewardConfig(accuracy="math", math=MathConfig(tolerance=1e-3), language=words, pool=judged_here)
    tests = {"tests": "assert double(2) == 4"}
    code = "def double(x):\n    return 2 * x"
    # The weaker mode, which any machine has.
    shut_in = RewardConfig(accuracy="code", code=CodeConfig(sandbox="rlimits", packages=("numpy",)), pool=judged_here)
    cases = {"cases": [{"input": "", "output": "2"}]}
    for reward, row in (
        (surds, RewardInput(prompt="", completion=r"\boxed{2\sqrt{2}}", reference=r"\sqrt{8}", ids=[1], end="eos")),
        (surds, RewardInput(prompt="", completion="3.142", reference="3.1416", ids=[1], end="eos")),
        (shut_in, RewardInput(prompt="", completion=code, reference="", ids=[1], end="eos", metadata=tests)),
        (shut_in, RewardInput(prompt="", completion="print(2)", reference="", ids=[1], end="eos", metadata=cases)),
    ):
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            patch.setattr(logging.getLogger("grpo_jax.rewards.code.sandbox"), "disabled", True)
            assert CompositeReward(reward).score([row]).accuracy.tolist() == [1.0]


def samplers() -> None:
    keys, logits = jax.random.split(jax.random.key(0), 2), jnp.zeros((2, 8))
    sampler = SamplerConfig(temperature=0.7, top_k=4, top_p=0.9, min_p=0.1)
    jax.eval_shape(partial(sample_tokens, config=sampler), logits, keys)


def optimizers() -> None:
    config = OptimizerConfig(schedule="cosine", warmup_steps=1, end_fraction=0.1)
    make_optimizer(config, 10).init({"kernel": jnp.zeros(2)})


def schedules() -> None:
    config = SchedulesConfig(kl_coef=ScheduleConfig(kind="cosine", end=0.1, steps=3))
    bases = {"kl_coef": 0.2, "format_weight": 0.2, "termination_weight": 0.2, "entropy_coef": 0.0}
    state = advance_schedules(config, initial_schedules(config, bases), {"kl": 0.1}, 4)
    scheduled_values(config, bases, state, 1, 10)


def failures() -> None:
    """Records that show each failure, in which every threshold has a say."""
    config = MonitorConfig(window=3)

    def course(**metrics: Callable[[float], float]) -> None:
        shares = [step / 11 for step in range(12)]
        records = [
            {"step": step + 1} | {name: value(share) for name, value in metrics.items()} for step, share in enumerate(shares)
        ]
        Monitor(config).check(records)

    course(entropy=lambda t: 2.0 - 1.99 * t, accuracy=lambda t: 0.3, repetition=lambda t: 0.5 * t)
    course(completion_length_mean=lambda t: 10 + 90 * t, accuracy=lambda t: 0.3)
    course(reward=lambda t: t, accuracy=lambda t: 0.9 - 0.8 * t)
    course(frac_zero_std=lambda t: 1.0)
    course(kl=lambda t: 0.01 * 40**t)
    course(mismatch_kl=lambda t: 1.0, ess=lambda t: 0.1)


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Reads:
    def everything() -> None:
        for exercise in (objectives, rewards, samplers, optimizers, schedules, failures):
            exercise()
        for at_a_place in (run, refill, models, tokenizer_file, curricula):
            at_a_place(tmp_path_factory.mktemp(at_a_place.__name__))

    return recorded(sections(), everything)


@pytest.mark.slow
@pytest.mark.parametrize("section", sorted(sections(), key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_every_field_of_a_section_is_read(reads: Reads, section: type) -> None:
    unread = [f"{owner.__name__}.{name}" for owner, name in fields(section) if (owner, name) not in reads]
    assert not unread


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithDeadField(EvaluationConfig):
    """Attributes:
    never: what nothing reads.
    """

    never: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.never == 0


def test_a_field_that_nothing_uses_would_be_found(tmp_path: Path) -> None:
    """Checking it, saving it, hashing it and comparing it are not using it."""
    config = tiny_runs.load(tmp_path)
    evaluation = WithDeadField(problems=1, samples=2, rows=10)

    def use() -> None:
        changed = dataclasses.replace(config, evaluation=dataclasses.replace(evaluation, every=2))
        schema.plain(changed)
        assert evaluation == WithDeadField(problems=1, samples=2, rows=10) and hash(evaluation) and repr(evaluation)
        assert evaluation.never == 0
        _ = build_experiment(changed).heldout_test

    seen = recorded([WithDeadField], use)
    assert (WithDeadField, "never") not in seen
    # What the test of held-out problems is made of is read, and what only the loop looks at is not.
    assert {name for _, name in seen} == {"problems", "samples", "sampler", "rows"}
    assert all(owner is EvaluationConfig for owner, _ in seen)
    assert "__getattribute__" not in vars(WithDeadField)
