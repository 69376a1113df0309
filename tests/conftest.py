"""Every test process gets eight virtual CPU devices, so that sharded tests need no process of their own."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

# Through jax.config rather than the environment: programs that a test starts choose their own number of devices.
jax.config.update("jax_num_cpu_devices", 8)
