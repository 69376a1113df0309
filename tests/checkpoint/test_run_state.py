"""Run checkpoints: what goes in comes out bit for bit, and what does not fit is one clear error."""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from grpo_jax.checkpoint import CheckpointMismatchError, CheckpointUnreadableError, RunCheckpoints
from grpo_jax.parallel import MeshShape, make_mesh, named_sharding


def make_state(seed=0):
    # Filled by NumPy, leaf by leaf, so that no test waits for the compilation of an optimizer step.
    rng = np.random.default_rng(seed)
    params = {"embed": jnp.zeros((8, 16)), "layers": {"up": jnp.zeros((2, 16, 8)), "norm": jnp.zeros(16, jnp.bfloat16)}}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 10)))
    state = {"params": params, "opt_state": optimizer.init(params), "step": jnp.int32(0)}
    return jax.tree.map(lambda leaf: jnp.asarray(100 * rng.normal(size=leaf.shape), leaf.dtype), state)


def assert_same_bits(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_state_and_host_come_back_bit_for_bit(tmp_path):
    state, host = make_state(), {"rng": 2**100 + 1, "cursor": [3, None, "ü"], "loss": 0.1}
    with RunCheckpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(7, state, host)
        restored = checkpoints.restore(jax.eval_shape(lambda: state))
        assert checkpoints.read_host() == host
    assert (restored.step, restored.host) == (7, host)
    assert_same_bits(restored.state, state)


def test_another_process_finds_the_latest_of_the_last_n(tmp_path):
    with RunCheckpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 5, 9):
            checkpoints.save(step, make_state(step), {"at": step})
    with RunCheckpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.steps() == (5, 9)
        assert checkpoints.latest_step() == 9
        assert checkpoints.restore(make_state()).step == 9
        assert_same_bits(checkpoints.restore(make_state(), 5).state, make_state(5))


def test_host_state_is_that_of_the_call(tmp_path):
    with RunCheckpoints(tmp_path) as checkpoints:
        host = {"cursor": [1]}
        checkpoints.save(1, make_state(), host)
        host["cursor"].append(2)
        assert checkpoints.read_host() == {"cursor": [1]}


@pytest.mark.parametrize("sharded", [False, True])
def test_buffers_may_be_donated_while_they_are_being_written(tmp_path, sharded):
    # Random floats do not compress, so writing 64 MB lasts far longer than the dispatch of the step that donates them.
    place = named_sharding(make_mesh(MeshShape(fsdp=8)), ("embed", None)) if sharded else None
    weights = jax.device_put(jax.random.normal(jax.random.key(0), (4096, 4096)), place)
    expected = np.array(weights)
    overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)

    probe = jax.device_put(jnp.zeros((4096, 4096)), place)
    pointer = probe.addressable_shards[0].data.unsafe_buffer_pointer()
    reused = overwrite(probe).addressable_shards[0].data.unsafe_buffer_pointer()
    assert reused == pointer, "this step does not overwrite its input, so the test would prove nothing"

    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"weights": weights}, {})
        weights = overwrite(overwrite(weights))
        weights.block_until_ready()
        target = jax.ShapeDtypeStruct(expected.shape, expected.dtype, sharding=place)
        restored = checkpoints.restore({"weights": target}).state["weights"]
    assert np.asarray(restored).tobytes() == expected.tobytes()
    assert float(weights.max()) == -1


def test_a_state_is_restored_onto_another_mesh(tmp_path):
    first, second = make_mesh(MeshShape(fsdp=8)), make_mesh(MeshShape(fsdp=2, tensor=4))
    plain = jax.random.normal(jax.random.key(0), (16, 8))
    axes = ("embed", "heads")
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": jax.device_put(plain, named_sharding(first, axes))}, {})
        target = named_sharding(second, axes)
        on_second = checkpoints.restore({"w": jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=target)}).state["w"]
        on_one = checkpoints.restore({"w": jax.ShapeDtypeStruct((16, 8), jnp.float32)}).state["w"]
    assert on_second.sharding == target
    assert len(on_one.sharding.device_set) == 1
    np.testing.assert_array_equal(on_second, plain)
    np.testing.assert_array_equal(on_one, plain)


def replace_leaf(state, shape=None, dtype=None):
    state = jax.eval_shape(lambda: state)
    leaf = state["params"]["embed"]
    state["params"]["embed"] = jax.ShapeDtypeStruct(shape or leaf.shape, dtype or leaf.dtype)
    return state


def add_leaf(state):
    return {**state, "params": {**state["params"], "head": jnp.zeros((3,))}}


def drop_leaf(state):
    return {key: value for key, value in state.items() if key != "opt_state"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: replace_leaf(s, shape=(8, 24)), ["params.embed", "float32[8, 16]", "float32[8, 24]"]),
        (lambda s: replace_leaf(s, dtype=jnp.bfloat16), ["params.embed", "float32[8, 16]", "bfloat16[8, 16]"]),
        (add_leaf, ["params.head", "float32[3]", "does not hold"]),
        (drop_leaf, ["opt_state.1.0.count", "no place"]),
    ],
)
def test_a_state_that_no_longer_fits_is_named_by_its_first_leaf(tmp_path, change, words):
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(), {})
        with pytest.raises(CheckpointMismatchError) as error:
            checkpoints.restore(change(make_state()))
    assert all(word in str(error.value) for word in [*words, str(tmp_path / "1"), "configuration that it was saved with"])


DAMAGES = {
    "manifest cut short": lambda folder: os.truncate(folder / "state" / "manifest.ocdbt", 10),
    "arrays missing": lambda folder: shutil.rmtree(folder / "state"),
    "host document not JSON": lambda folder: (folder / "host" / "metadata").write_text("{"),
    "structure missing": lambda folder: shutil.rmtree(folder / "structure"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_unreadable_checkpoint_names_its_folder_and_the_older_ones_and_deletes_nothing(tmp_path, damage):
    with RunCheckpoints(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, make_state(step), {"at": step})
    DAMAGES[damage](tmp_path / "3")
    before = sorted(path for path in tmp_path.rglob("*"))
    with RunCheckpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointUnreadableError) as error:
            checkpoints.restore(make_state())
        assert_same_bits(checkpoints.restore(make_state(), 2).state, make_state(2))
    assert all(word in str(error.value) for word in [str(tmp_path / "3"), "steps 1, 2", "move 3/ out"])
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_moving_a_damaged_checkpoint_away_lets_the_run_go_on(tmp_path):
    with RunCheckpoints(tmp_path / "run") as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, make_state(step), {})
    shutil.move(tmp_path / "run" / "2", tmp_path / "damaged")
    with RunCheckpoints(tmp_path / "run") as checkpoints:
        assert checkpoints.restore(make_state()).step == 1
        checkpoints.save(2, make_state(2), {})
        assert checkpoints.restore(make_state()).step == 2


def test_a_step_not_later_than_the_latest_is_refused(tmp_path):
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(5, make_state(), {})
        for step in (4, 5):
            with pytest.raises(ValueError, match=f"step {step} is not later than step 5"):
                checkpoints.save(step, make_state(), {})


def test_a_reader_leaves_a_writers_unfinished_folder_alone(tmp_path):
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(), {})
    unfinished = tmp_path / "3.orbax-checkpoint-tmp"
    unfinished.mkdir()
    with RunCheckpoints(tmp_path, read_only=True) as reader:
        assert reader.restore(make_state()).step == 1
    assert unfinished.exists()
    with RunCheckpoints(tmp_path) as writer:
        writer.save(2, make_state(), {})
    assert not unfinished.exists()


def test_what_cannot_be_saved_is_named(tmp_path):
    with RunCheckpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match=r"opt\.count is int"):
            checkpoints.save(1, {"opt": {"count": 3}}, {})
        with pytest.raises(TypeError, match=r"key is key<fry>.*key_data"):
            checkpoints.save(1, {"key": jax.random.key(0)}, {})
        with pytest.raises(TypeError, match="host must be JSON"):
            checkpoints.save(1, {}, {"array": np.zeros(2)})
        assert checkpoints.steps() == ()


def test_nothing_to_restore_is_a_clear_error(tmp_path):
    with RunCheckpoints(tmp_path) as checkpoints:
        with pytest.raises(FileNotFoundError, match="no checkpoint in"):
            checkpoints.restore(make_state())
        checkpoints.save(2, make_state(), {})
        with pytest.raises(FileNotFoundError, match=r"no step 3 .*steps 2"):
            checkpoints.restore(make_state(), 3)
    with pytest.raises(FileNotFoundError, match="no checkpoint folder"):
        RunCheckpoints(tmp_path / "typo", read_only=True)
    with pytest.raises(ValueError, match="keep must be at least 1"):
        RunCheckpoints(tmp_path, keep=0)
