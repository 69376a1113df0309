"""Every test process gets eight virtual CPU devices, so that sharded tests need no process of their own."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

# Through jax.config rather than the environment: programs that a test starts choose their own number of devices.
jax.config.update("jax_num_cpu_devices", 8)

# Tests compile far more than they compute. Without LLVM's optimizations, which change how fast a program is and not what
# XLA makes of it, they take a third less time. XLA reads the variable once, here; programs that a test starts run as
# users run them.
_flags = os.environ.get("XLA_FLAGS")
os.environ["XLA_FLAGS"] = f"{_flags or ''} --xla_backend_optimization_level=0".strip()
jax.devices()
if _flags is None:
    del os.environ["XLA_FLAGS"]
else:
    os.environ["XLA_FLAGS"] = _flags
