"""One program in a sandbox: its standard streams are those of the process."""

import sys

from grpo_jax.rewards.code.inside.start import close_others, compiled, confine, module


def main(job, confinement, control, channel):
    """Runs the program as if it were the file that Python was started with."""
    close_others(control)
    confine(confinement, control)
    close_others()
    namespace = module("__main__")
    try:
        for code in compiled(job["variants"], "program.py"):
            exec(code, namespace)
    except SystemExit:
        raise
    except BaseException as error:
        # As Python reports it, from the program's first frame on.
        frame = error.__traceback__
        sys.excepthook(type(error), error, frame and frame.tb_next)
        raise SystemExit(1) from None
