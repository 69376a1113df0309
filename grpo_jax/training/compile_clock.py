"""How often XLA compiled, and how long that took: compilation hides in whichever phase runs first."""

import types

import jax.monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"


class CompileClock:
    """Counts compilations and adds up their seconds while it is entered.

    Attributes:
        count: functions compiled so far.
        seconds: seconds of lowering and compiling so far. Tracing is not in it: traces nest, and jax reports each
            level, so that their sum is no time that anyone waited.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def _heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        self.count += event == _COMPILED
        self.seconds += duration_secs if event in (_LOWERED, _COMPILED) else 0.0

    def __enter__(self) -> "CompileClock":
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        jax.monitoring.unregister_event_duration_listener(self._heard)
