"""The table of what each kernel takes of its chip, from the rows that the check has written.

    make .venv-aot/.installed
    .venv-aot/bin/python -m pallas_kernels.check --target all --json benchmarks/results/kernel_resources.json
    python benchmarks/kernel_resources.py

writes benchmarks/results/kernel_resources.md. Nothing is run on a device; these are the compilers' own counts.
"""

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
CHIPS = ("a100", "h200", "b200", "v5e", "v6e", "v5p")


def cell(row: dict | None) -> str:
    """Registers / spilled bytes / shared KiB of a GPU's kernels, or the temporaries that XLA plans on a TPU."""
    if row is None:
        return ""
    if row["status"] != "ok":
        return row["status"]
    if not row["kernels"]:
        return f"{row['temporary_bytes'] / 1e6:.1f} MB"
    registers = max(kernel["registers"] for kernel in row["kernels"])
    spilled = sum(kernel["spilled_bytes"] for kernel in row["kernels"])
    shared = max(kernel["shared_bytes"] for kernel in row["kernels"])
    return f"{registers} / {spilled} / {shared / 1024:.0f}"


def main() -> None:
    table = json.loads((RESULTS / "kernel_resources.json").read_text())
    rows: dict[tuple, dict[str, dict]] = {}
    for row in table["rows"]:
        name = row["op"] + (" +grad" if row["backward"] else "")
        gpu = row["implementation"] if row["implementation"] != "tpu" else "gpu_triton"
        rows.setdefault((name, row["shape"], row["dtype"], gpu), {})[row["target"]] = row
    spilled = sum(kernel["spilled_bytes"] for row in table["rows"] for kernel in row["kernels"] or [])
    compiled = sum(row["status"] == "ok" for row in table["rows"])
    versions = ", ".join(f"{package} {version}" for package, version in table["versions"].items())
    lines = [
        "# What each kernel takes of its chip",
        "",
        f"{compiled} compilations of {table['date'][:10]}, {spilled} spilled bytes in all. {versions}.",
        "Made by `python benchmarks/kernel_resources.py`, which says how. No device was used and no time is claimed.",
        "",
        "GPU: registers of a thread (the most of the op's kernels) / spilled bytes (their sum) / KiB of shared memory (the",
        "most). TPU: what XLA plans for intermediate arrays; that it compiles means that the buffers fit vector memory.",
        "A row of `gpu_mosaic` is Hopper's alone.",
        "",
        "| op | shape | dtype | GPU by | " + " | ".join(CHIPS) + " |",
        "|---|---|---|---|" + "--:|" * len(CHIPS),
    ]
    for (name, shape, dtype, gpu), found in rows.items():
        cells = " | ".join(cell(found.get(chip)) for chip in CHIPS)
        lines.append(f"| {name} | {shape} | {dtype} | {gpu.removeprefix('gpu_')} | {cells} |")
    (RESULTS / "kernel_resources.md").write_text("\n".join(lines) + "\n")
    print(f"{len(rows)} rows, {spilled} spilled bytes")


if __name__ == "__main__":
    main()
