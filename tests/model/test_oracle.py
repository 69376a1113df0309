"""The decoder against NumPy float64."""

import numpy as np
import pytest

from tests.model.cases import CONFIGS, PLAIN, YARN, full, tokens, unembed, weights
from tests.oracles import transformer as oracle

# Logits here have a standard deviation of 4; the float32 forward stays about five times closer than this.
TOLERANCE = 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_match_oracle(name):
    config = CONFIGS[name]
    logits, hidden = full(config, weights(config), tokens())
    expected = oracle.logits(config, weights(config), tokens())
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(unembed(config, hidden), expected, rtol=0, atol=TOLERANCE)


def test_oracle_cases_are_told_apart():
    """Positions, YaRN's frequencies and its factor all move the logits of these cases by far more than the tolerance."""
    mla, yarn = CONFIGS["mla"], CONFIGS["mla_yarn"]
    ids = tokens(1)
    plain = oracle.logits(mla, weights(mla), ids)
    assert np.abs(plain - oracle.logits(yarn, weights(mla), ids)).max() > 0.1
    swapped = ids.copy()
    swapped[0, :2] = ids[0, 1::-1]
    assert np.abs(plain[0, -1] - oracle.logits(mla, weights(mla), swapped)[0, -1]).max() > 0.01
    kept, mixed = oracle.frequencies(PLAIN, 8), oracle.frequencies(YARN, 8)
    assert kept[0] == mixed[0] and mixed[3] == kept[3] / 8
    assert np.all(mixed[1:3] < kept[1:3]) and np.all(mixed[1:3] > kept[1:3] / 8)
