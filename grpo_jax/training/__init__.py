"""From a config to a trained run: config, optimizer, steps, loop, and what a run writes."""

__all__: list[str] = []
