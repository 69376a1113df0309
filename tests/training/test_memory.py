"""Peak memory: in bytes, and over every process that a run has had."""

from grpo_jax.training.memory import DEVICE, HOST, memory_metrics, peak_memory


def test_peak_memory_is_bytes_and_never_falls() -> None:
    before = memory_metrics()[HOST]
    block = bytearray(64 * 2**20)
    after = memory_metrics()[HOST]
    assert before is not None and after is not None and block
    assert before > 20 * 2**20  # python with numpy and jax; in kibibytes it would be far below
    assert after >= before


def test_the_peak_of_a_run_is_that_of_its_largest_process() -> None:
    records = [{HOST: 7, DEVICE: None}, {HOST: 2**60, DEVICE: 5}, {HOST: 9, DEVICE: 3}, {"step": 1}]
    assert peak_memory(records) == {"host": 2**60, "device": 5}
    here = peak_memory([])
    assert here["host"] is not None and here["host"] > 2**20 and here["device"] is None
