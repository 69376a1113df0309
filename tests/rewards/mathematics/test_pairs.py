"""Answers and references of every kind: equal_pairs.jsonl must be equal, different_pairs.jsonl must not."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from grpo_jax.rewards.mathematics import equal_final

FOLDER = Path(__file__).parent


def by_kind(name):
    kinds = defaultdict(list)
    for line in (FOLDER / name).read_text().splitlines():
        pair = json.loads(line)
        kinds[pair["kind"]].append((pair["answer"], pair["reference"]))
    return kinds


EQUAL, DIFFERENT = by_kind("equal_pairs.jsonl"), by_kind("different_pairs.jsonl")
# Kinds where a reference takes less than it equals as a value: the reverse of such a pair may be equal.
FINAL = {"work undone", "integer", "decimal", "fraction", "complex", "matrix"}


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_pairs_are_equal_in_both_directions(kind):
    wrong = [pair for pair in EQUAL[kind] if not (equal_final(*pair) and equal_final(*reversed(pair)))]
    assert wrong == []


@pytest.mark.parametrize("kind", DIFFERENT)
def test_different_pairs_are_different(kind):
    wrong = [pair for pair in DIFFERENT[kind] if equal_final(*pair)]
    if kind not in FINAL:
        wrong += [pair[::-1] for pair in DIFFERENT[kind] if equal_final(*reversed(pair))]
    assert wrong == []


def test_there_are_pairs_of_every_kind():
    assert sum(map(len, EQUAL.values())) >= 150
    assert sum(map(len, DIFFERENT.values())) >= 120
