"""Where a run stands, apart from its arrays: what a checkpoint keeps as JSON and a resumed run goes on from."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Self

from grpo_jax.data import CurriculumState, initial_state

TrainingPhase = Literal["sft", "grpo"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """A point between two steps.

    Attributes:
      phase: the phase that goes on here.
      step: steps of that phase done.
      curriculum: the curriculum's state in that phase.
      tokenizer: fingerprint of the tokenizer that the parameters were trained with.
      data: fingerprint of the task's problems.
      has_reference: whether a reference policy is held here.
      controls: the state of the schedules and what alarms have changed (`Controls`); empty before GRPO.
      replay_components: names of the reward's parts in the replay buffer that is held here; None where there is none.
    """

    phase: TrainingPhase
    step: int
    curriculum: CurriculumState
    tokenizer: str
    data: str
    has_reference: bool
    controls: dict[str, Any]
    replay_components: list[str] | None

    @classmethod
    def start(
        cls,
        phase: TrainingPhase,
        stages: tuple[str, ...],
        *,
        tokenizer: str,
        data: str,
        has_reference: bool = False,
        controls: dict[str, Any] | None = None,
        replay_components: list[str] | None = None,
    ) -> Self:
        """The beginning of a phase."""
        return cls(
            phase=phase,
            step=0,
            curriculum=initial_state(stages),
            tokenizer=tokenizer,
            data=data,
            has_reference=has_reference,
            controls=controls or {},
            replay_components=replay_components,
        )

    def after_step(self) -> Self:
        """One step further."""
        return dataclasses.replace(self, step=self.step + 1)

    def with_controls(self, controls: dict[str, Any]) -> Self:
        """The same point with other controls."""
        return dataclasses.replace(self, controls=controls)

    def with_curriculum(self, curriculum: CurriculumState) -> Self:
        """The same point with the curriculum moved on."""
        return dataclasses.replace(self, curriculum=curriculum)

    def to_json(self) -> dict[str, Any]:
        """A JSON document that `from_json` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The position that `to_json` wrote.

        Raises:
          ValueError: the document has other keys; another version of grpo_jax wrote it.
        """
        keys = {field.name for field in dataclasses.fields(cls)}
        if document.keys() != keys:
            raise ValueError(
                f"the checkpoint's position has the keys {sorted(document)}, but this version of grpo_jax needs "
                f"{sorted(keys)}: another version wrote it. Go on with that version, or begin a new "
                "run with another --run_dir"
            )
        return cls(**document)
