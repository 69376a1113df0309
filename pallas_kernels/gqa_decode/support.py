"""Which arguments the kernels of decode attention cannot take, and why."""

from typing import Any


def refuses_gpu_triton(query: Any, key: Any, value: Any, *others: Any, **options: Any) -> str | None:
    if query.dtype.name not in ("float32", "bfloat16", "float16"):
        return f"query is {query.dtype}, and the kernel multiplies float32, bfloat16 and float16."
    width = max(key.shape[-1], value.shape[-1])
    if width > 256:
        return f"a head of width {width} exceeds 256, for which one program has registers."
    if query.dtype.name == "float32" and width > 128:
        return (
            f"a float32 head of width {width} exceeds 128, for which exact products outside the tensor cores have registers."
        )
    return None


def refuses_tpu(query: Any, key: Any, value: Any, *others: Any, **options: Any) -> str | None:
    if query.dtype.name not in ("float32", "bfloat16"):
        return f"query is {query.dtype}, and a TPU's matrix unit takes float32 and bfloat16."
    width = max(key.shape[-1], value.shape[-1])
    if width > 512:
        return f"a head of width {width} exceeds 512, for which blocks fit into VMEM."
    return None
