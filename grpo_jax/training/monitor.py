"""The monitor of a GRPO run: after each step, which failures have begun to show in the logged metrics.

What it says is a function of the records alone. A run that was interrupted and reads its log again raises the same
alarms at the same steps as one that was not.
"""

from collections.abc import Callable, Collection

from grpo_jax.training.alarms import ALARMS, Alarm, MonitorConfig, Records

__all__ = ["ACTIONS", "ALARMS", "Alarm", "Monitor", "MonitorConfig", "parse_actions"]

ACTIONS = ("stop", "raise_kl", "lower_temperature")
"""What a run can do about an alarm by itself."""


class Monitor:
    """Judges a run by its records. It holds nothing but its configuration."""

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config

    def check(self, records: Records) -> list[Alarm]:
        """The alarms that the last record raises.

        An alarm is raised where its condition holds and held at none of the `window` steps before: once when a failure
        begins, and again only after a window without it.

        Args:
            records: all records of the phase `grpo` so far, those from before an interruption included. Only the first
                window and the last four are read.
        """
        return [alarm for test in ALARMS.values() if (alarm := self._raised(test, records)) is not None]

    def _raised(self, test: Callable[[Records, MonitorConfig], Alarm | None], records: Records) -> Alarm | None:
        end = len(records)
        alarm = test(self._excerpt(records, end), self._config)
        # Most steps end here; where a failure goes on, the first step back already shows it.
        if alarm is None:
            return None
        before = range(end - 1, max(end - 1 - self._config.window, 0), -1)
        return None if any(test(self._excerpt(records, step), self._config) for step in before) else alarm

    def _excerpt(self, records: Records, end: int) -> Records:
        """What a test reads of the first `end` records, in time and space that do not grow with the run."""
        window = self._config.window
        if end <= 4 * window:
            return records[:end]
        return [*records[:window], *records[end - 3 * window : end]]


def parse_actions(text: str) -> dict[str, str]:
    """The action for each alarm that has one, from the text of the option `on_alarm`.

    Args:
        text: empty for none; an action (`stop`) for all alarms; or `alarm=action` for some, separated by commas.

    Raises:
        ValueError: an unknown alarm or action, an alarm named twice, or another form.
    """
    if not text.strip():
        return {}
    if "=" not in text and "," not in text:
        return dict.fromkeys(ALARMS, _known("action", text.strip(), ACTIONS, text))
    actions: dict[str, str] = {}
    for part in text.split(","):
        name, equals, action = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(
                f"on_alarm is {text!r}, but it must be one action, or alarm=action separated by commas; {part.strip()!r} "
                "is neither"
            )
        if _known("alarm", name, ALARMS, text) in actions:
            raise ValueError(f"on_alarm is {text!r}, but it must name each alarm once; {name} is named twice")
        actions[name] = _known("action", action, ACTIONS, text)
    return actions


def _known(kind: str, name: str, known: Collection[str], text: str) -> str:
    if name not in known:
        raise ValueError(f"on_alarm is {text!r}, but {name!r} is no {kind}; it must be one of {', '.join(known)}")
    return name
