"""The command line: `grpo train` and `grpo export`."""

__all__: list[str] = []
