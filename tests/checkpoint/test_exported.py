"""An export opens as a starting point: the same shape, tokenizer, parameters and logits, or a refusal that says why."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs
import tokenizers
from tokenizers import models, pre_tokenizers

from grpo_jax.checkpoint import (
    CheckpointMismatchError,
    CheckpointUnreadableError,
    ExportedModel,
    export_params,
    open_pretrained,
)
from grpo_jax.cli.export import export
from grpo_jax.data import CharacterTokenizer, HFTokenizer
from grpo_jax.data.arithmetic import ALPHABET
from grpo_jax.model import GQAConfig, ModelConfig, hidden_states, init_params, param_axes, unembedding
from grpo_jax.parallel import MeshShape, make_mesh, tree_shardings
from grpo_jax.training import configfile
from grpo_jax.training.loop import train
from grpo_jax.training.policy import build_policy
from grpo_jax.training.schema import ConfigError

MODEL = ModelConfig(
    vocab_size=26,
    num_layers=1,
    embed_dim=8,
    mlp_dim=8,
    gqa=GQAConfig(num_heads=2, num_kv_heads=1, head_dim=4),
)
TOKENS = np.arange(24).reshape(2, 12) % 26


def exported(folder: Path, tokenizer: dict, model: ModelConfig = MODEL):
    params = init_params(model, jax.random.key(5))
    export_params(params, model, folder, tokenizer=tokenizer)
    return params


def characters(alphabet: str | None = None) -> dict:
    fingerprint = CharacterTokenizer(alphabet or ALPHABET).fingerprint()
    return {"fingerprint": fingerprint, "pretrained": None, "path": None, "eos": [], "alphabet": alphabet}


def same(one, other) -> bool:
    return all(jax.tree.leaves(jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), one, other)))


def logits(model: ModelConfig, params) -> np.ndarray:
    return np.asarray(hidden_states(model, params, jnp.asarray(TOKENS)) @ unembedding(model, params))


def test_a_run_starts_from_exactly_the_exported_parameters(tmp_path: Path) -> None:
    params = exported(tmp_path / "export", characters())
    config = tiny_runs.load(tmp_path, "model=null", f"pretrained.path={tmp_path / 'export'}", "pretrained.remat=full")
    policy = build_policy(config)
    # What the backward pass recomputes is the run's own; everything else is the export's.
    assert policy.model.remat == "full" and vars(policy.model) | {"remat": MODEL.remat} == vars(MODEL)
    assert policy.tokenizer.fingerprint() == CharacterTokenizer(ALPHABET).fingerprint()
    loaded = policy.initial_params()
    assert same(loaded, params)
    np.testing.assert_array_equal(logits(policy.model, loaded), logits(MODEL, params))


def test_an_export_lands_on_the_mesh_of_the_run(tmp_path: Path) -> None:
    params = exported(tmp_path / "export", characters())
    config = tiny_runs.load(tmp_path, "model=null", f"pretrained.path={tmp_path / 'export'}", "mesh=2")
    loaded = build_policy(config).initial_params()
    expected = tree_shardings(make_mesh(MeshShape.parse("2")), param_axes(MODEL))
    jax.tree.map(
        lambda leaf, sharding: leaf.sharding.is_equivalent_to(sharding, leaf.ndim) or pytest.fail(), loaded, expected
    )
    assert same(loaded, params)


@pytest.mark.slow
def test_export_train_export_is_a_chain(tmp_path: Path) -> None:
    """A run from an export moves its parameters, and its own export starts the next run where it ended."""
    first = exported(tmp_path / "first", characters())
    config = tiny_runs.load(tmp_path, "model=null", f"pretrained.path={tmp_path / 'first'}")
    train(config)
    assert configfile.load(Path(config.run_dir) / "config.yaml") == config
    export(Path(config.run_dir), tmp_path / "second")
    (tmp_path / "next").mkdir()
    again = tiny_runs.load(tmp_path / "next", "model=null", f"pretrained.path={tmp_path / 'second'}")
    policy = build_policy(again)
    second = policy.initial_params()
    assert not same(second, first)
    assert policy.tokenizer.fingerprint() == CharacterTokenizer(ALPHABET).fingerprint()
    # The first export is gone back to by resuming and by nothing else.
    export(Path(config.run_dir), tmp_path / "initial", step=3)
    assert not same(ExportedModel(tmp_path / "initial").load_params(MODEL), second)


def library_tokenizer(words: list[str]) -> tokenizers.Tokenizer:
    vocabulary = {word: index for index, word in enumerate(["<end>", *words])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def test_tokenizers_come_back_as_they_were_trained_with(tmp_path: Path) -> None:
    exported(tmp_path / "characters", characters("abc"))
    assert ExportedModel(tmp_path / "characters").tokenizer().encode("cab") == CharacterTokenizer("abc").encode("cab")
    path = tmp_path / "tokenizer.json"
    library_tokenizer(["hello", "world"]).save(str(path))
    trained = HFTokenizer.from_file(str(path), eos=("<end>",))
    exported(
        tmp_path / "file",
        {"fingerprint": trained.fingerprint(), "pretrained": None, "path": str(path), "eos": ["<end>"], "alphabet": None},
    )
    again = ExportedModel(tmp_path / "file").tokenizer()
    assert again.encode("hello world") == [1, 2] and again.eos_ids == (0,)
    exported(
        tmp_path / "chained",
        {
            "fingerprint": trained.fingerprint(),
            "pretrained": str(tmp_path / "file"),
            "path": None,
            "eos": [],
            "alphabet": None,
        },
    )
    assert ExportedModel(tmp_path / "chained").tokenizer().fingerprint() == trained.fingerprint()


def test_a_tokenizer_that_has_changed_since_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    library_tokenizer(["hello", "world"]).save(str(path))
    trained = HFTokenizer.from_file(str(path), eos=("<end>",))
    exported(
        tmp_path / "export",
        {"fingerprint": trained.fingerprint(), "pretrained": None, "path": str(path), "eos": ["<end>"], "alphabet": None},
    )
    library_tokenizer(["world", "hello"]).save(str(path))
    config = tiny_runs.load(tmp_path, "model=null", f"pretrained.path={tmp_path / 'export'}")
    with pytest.raises(
        CheckpointMismatchError, match=r"not the one that its parameters were trained with.*Restore the file"
    ):
        train(config)
    assert not Path(config.run_dir).exists()
    path.unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        train(config)


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no export in"):
        open_pretrained(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        open_pretrained(str(tmp_path / "nowhere.gguf"))
    exported(tmp_path / "export", characters())
    path = tmp_path / "export" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointUnreadableError, match="format 99"):
        open_pretrained(str(tmp_path / "export"))
