"""An export loads without training state, and by plain Orbax without this library."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.checkpoint import (
    CheckpointMismatchError,
    CheckpointUnreadableError,
    export_params,
    load_exported,
    read_model_json,
)
from grpo_jax.model import (
    GQAConfig,
    MLAConfig,
    ModelConfig,
    RopeConfig,
    YarnConfig,
    abstract_params,
    param_axes,
)
from grpo_jax.parallel import MeshShape, make_mesh, tree_shardings

GQA = ModelConfig(
    vocab_size=32,
    num_layers=2,
    embed_dim=16,
    mlp_dim=32,
    gqa=GQAConfig(num_heads=4, num_kv_heads=2, head_dim=8, rope=RopeConfig(theta=5000.0)),
    tie_embeddings=False,
)
MLA = ModelConfig(
    vocab_size=32,
    num_layers=2,
    embed_dim=16,
    mlp_dim=32,
    mla=MLAConfig(
        num_heads=2,
        kv_rank=8,
        nope_dim=4,
        rope_dim=4,
        value_dim=4,
        q_rank=8,
        rope=RopeConfig(yarn=YarnConfig(factor=4.0, original_max_length=64)),
    ),
    param_dtype="bfloat16",
)
CONFIGS = {"gqa": GQA, "mla": MLA}


def random_params(config):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), abstract_params(config))


@pytest.fixture(params=CONFIGS)
def exported(request, tmp_path):
    config = CONFIGS[request.param]
    params = random_params(config)
    folder = export_params(params, config, tmp_path / "export", tokenizer={"kind": "characters", "alphabet": "0½"})
    return config, params, folder


def test_config_and_parameters_come_back_bit_for_bit(exported):
    config, params, folder = exported
    loaded_config, loaded = load_exported(folder)
    assert loaded_config == config
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        assert (a.dtype, np.asarray(a).tobytes()) == (b.dtype, np.asarray(b).tobytes())
    assert read_model_json(folder)["tokenizer"] == {"kind": "characters", "alphabet": "0½"}


def test_an_export_loads_onto_a_mesh(exported):
    config, params, folder = exported
    shardings = tree_shardings(make_mesh(MeshShape(fsdp=4, tensor=2)), param_axes(config))
    _, loaded = load_exported(folder, shardings=shardings)
    assert jax.tree.map(lambda leaf: leaf.sharding, loaded) == shardings
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


@pytest.mark.parametrize("exported", ["gqa"], indirect=True)
def test_plain_orbax_reads_the_parameters_without_this_library(exported, tmp_path):
    _, params, folder = exported
    program = """
        import sys
        import numpy as np
        import orbax.checkpoint as ocp
        params = ocp.StandardCheckpointer().restore(sys.argv[1])
        assert not any(name.startswith("grpo_jax") for name in sys.modules)
        np.save(sys.argv[2], np.asarray(params["layers"]["attention"]["out"]).astype(np.float32))
    """
    out = tmp_path / "out.npy"
    command = [sys.executable, "-c", textwrap.dedent(program), str(folder / "params"), str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(out), np.asarray(params["layers"]["attention"]["out"]).astype(np.float32))


def test_an_export_is_not_overwritten(exported):
    config, params, folder = exported
    with pytest.raises(FileExistsError, match="not overwritten"):
        export_params(params, config, folder)
    assert load_exported(folder)[0] == config


def test_parameters_of_another_model_are_refused_before_anything_is_written(tmp_path):
    params = random_params(GQA)
    with pytest.raises(CheckpointMismatchError, match=r"mlp\.down is float32\[2, 32, 16\].*float32\[2, 64, 16\]"):
        export_params(params, dataclasses.replace(GQA, mlp_dim=64), tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_what_cannot_be_loaded_says_why(exported, tmp_path):
    _, _, folder = exported
    with pytest.raises(FileNotFoundError, match=r"model\.json is missing"):
        load_exported(tmp_path / "typo")
    path = folder / "model.json"
    document = json.loads(path.read_text())

    def load_with(**changes):
        path.write_text(json.dumps({**document, **changes}))
        return load_exported(folder)

    with pytest.raises(CheckpointUnreadableError, match="format 99"):
        load_with(format=99)
    with pytest.raises(CheckpointUnreadableError, match="flavour"):
        load_with(model={**document["model"], "flavour": 1})
    with pytest.raises(CheckpointMismatchError, match=r"embed\.embedding is .*\[32, 16\].*\[64, 16\]"):
        load_with(model={**document["model"], "vocab_size": 64})
    path.write_text("{")
    with pytest.raises(CheckpointUnreadableError, match="not JSON"):
        load_exported(folder)
    path.write_text(json.dumps(document))
    os.truncate(folder / "params" / "manifest.ocdbt", 10)
    with pytest.raises(CheckpointUnreadableError, match="cannot be read"):
        load_exported(folder)
