"""A file is the old text or the new one, whatever happens while it is written."""

import os
import threading

import pytest

from grpo_jax.checkpoint import atomic_write


def test_text_is_replaced_whole_and_byte_for_byte(tmp_path):
    path = tmp_path / "summary.json"
    atomic_write(path, "first\r\n")
    atomic_write(path, "second — ½\n")
    assert path.read_bytes() == "second — ½\n".encode()
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_failed_write_leaves_the_old_text_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    atomic_write(path, "old")

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_reader_never_sees_a_part(tmp_path):
    path = tmp_path / "text"
    texts = {letter * 200_000 for letter in "ab"}
    atomic_write(path, "a" * 200_000)
    done = threading.Event()

    def write():
        for i in range(50):
            atomic_write(path, "ab"[i % 2] * 200_000)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(path.read_text())
    writer.join()
    assert seen <= texts


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "nowhere" / "file", "text")
