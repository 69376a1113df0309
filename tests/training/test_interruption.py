"""The first signal asks, the second acts, and everything is as before afterwards."""

import os
import signal
from collections.abc import Iterator

import pytest

from grpo_jax.training.interruption import Interruption


@pytest.fixture(autouse=True)
def signals_act() -> Iterator[None]:
    """A shell that starts the tests in the background leaves them deaf to SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_first_signal_asks_and_second_one_acts() -> None:
    with Interruption() as interruption:
        assert interruption.requested is None
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.requested is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.requested is signal.SIGTERM
    with Interruption():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
