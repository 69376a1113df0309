"""Which rows of a rollout are trained on: groups without a signal, and rows that the limit on length cut off."""

import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

__all__ = ["DEAD_GROUPS", "GroupsConfig", "row_weights"]

DEAD_GROUPS = ("keep", "drop", "refill", "replay")
"""What may be done with a group without a signal."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupsConfig:
    """What is done with groups that teach nothing and with rows that did not come to an end.

    Attributes:
        dead: What happens to groups without a signal. `keep` leaves their rows in the denominator and under the KL term;
            `drop` takes them out of the loss. `refill` (DAPO's dynamic sampling, 2503.14476) takes out the groups whose
            *accuracy* is all 0 or all 1, whatever else is rewarded, and samples new prompts in their place. `replay` drops
            them and trains on groups of earlier rollouts in their place.
        max_refills: refill: the most rollouts sampled besides the first; what is still missing then is left out. Null is 3.
        replay_groups: replay: groups with a signal that are kept for later, the newest ones. Null is twice the prompts of a
            rollout.
        mask_truncated: Leave rows that the limit on length cut off out of the loss and of its denominator; they still
            count in their group's statistics.
    """

    dead: Literal["keep", "drop", "refill", "replay"] = "keep"
    max_refills: int | None = None
    replay_groups: int | None = None
    mask_truncated: bool = False

    def __post_init__(self) -> None:
        if self.dead not in DEAD_GROUPS:
            raise ValueError(f"dead is {self.dead!r}, but it must be one of {', '.join(DEAD_GROUPS)}")
        for name, user in (("max_refills", "refill"), ("replay_groups", "replay")):
            value = getattr(self, name)
            if value is None:
                continue
            if self.dead != user:
                raise ValueError(
                    f"{name} is {value}, but it belongs to dead {user} and dead is {self.dead}. Leave it null, or set dead "
                    f"to {user}"
                )
            if value < 1:
                raise ValueError(f"{name} is {value}, but it must be at least 1")


def row_weights(
    config: GroupsConfig, live_B: Bool[np.ndarray, " B"], truncated_B: Bool[np.ndarray, " B"] | None = None
) -> Float[np.ndarray, " B"]:
    """1 for rows that are trained on, 0 for rows that are not.

    Args:
        config: the choice.
        live_B: `Advantages.live_B`: rows that carry a signal.
        truncated_B: rows that the limit on length cut off; needed with mask_truncated only.

    Raises:
        ValueError: mask_truncated without `truncated_B`.
    """
    weights = np.ones(np.shape(live_B), np.float32) if config.dead == "keep" else np.asarray(live_B, np.float32)
    if config.mask_truncated:
        if truncated_B is None:
            raise ValueError("truncated is None, but mask_truncated is True: say which rows were cut off")
        weights = np.where(truncated_B, np.float32(0), weights)
    return weights
