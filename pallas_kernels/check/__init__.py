"""Checks and times every kernel on the device at hand, or compiles them for devices that are not there.

    python -m pallas_kernels.check [--op mla_decode] [--budget 240] [--json PATH]
    python -m pallas_kernels.check --target h200,v5e [--json PATH]
    python -m pallas_kernels.check --list

On a GPU or TPU, each implementation that serves a case runs on random inputs, is compared with float64 NumPy and timed;
XLA's compilation of the reference, and tokamax where it is installed, stand beside it. Inputs are the same in every run.

The roofline of a case is the least time in which the device could do it: max(bytes / bandwidth, FLOPs / peak), with the
figures of its data sheet. The share of it is that time over the time measured. Because no program reaches the data sheet's
bandwidth, a large copy is timed as well, and a case that memory bounds is also held against that.

The JSON file holds one object:

    date          when the run began, UTC, ISO 8601
    mode          "device" or "deviceless"
    complete      false until the last row is written: the run was stopped, or ran out of its budget
    versions      of the packages that decide what is compiled; null for one that is not installed
    device        null if deviceless, else
        platform, kind, driver, runtime      what JAX and the driver say; null if unknown
        bandwidth, flops                     bytes/s, and FLOP/s by dtype, of the data sheet; null for an unknown device
        copy_bandwidth                       bytes/s of a large copy, read and written; null on a CPU
    rows          a list, in the order in which they ran; all have
        op, shape, dtype, backward, implementation
        status                               "ok"; "wrong" (error above allowed), "error" (it raised), "refused" (the
                                             implementation does not take this case)
        message                              first line of what was raised, or null
      on a device also (null where there is no figure)
        error, allowed                       max |got - expected| / (1 + |expected|)
        seconds, least_seconds               median and least over the repeats, of one call
        floor_seconds, bound                 the roofline, and which side of it holds: "memory" or "compute"
        roofline_share, copy_share           floor_seconds / seconds; bytes / copy_bandwidth / seconds if memory bounds
        bytes, flops
      without a device also
        target
        calls                                kernels in the compiled program
        kernels                              of Triton, each {name, registers, spilled_bytes, shared_bytes}
        temporary_bytes                      device memory for intermediate arrays
    not_run       a list of {op, shape, dtype, backward, implementation, target}: what the budget or Ctrl-C left out

It is replaced whole after each row, so that a run that dies leaves what it had measured.
"""
