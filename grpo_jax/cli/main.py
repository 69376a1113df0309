"""The `grpo` command: finds the command asked for and runs it."""

import difflib
import importlib
import sys
from collections.abc import Sequence

from grpo_jax.cli.huge_pages import use_huge_pages

# Modules of this package with a `main(argv) -> int`; imported when called, since each pulls in what it alone needs.
COMMANDS = {
    "train": "train a model by SFT and GRPO from a configuration",
    "export": "write the parameters of a run, alone, as a checkpoint",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `grpo COMMAND …`; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        print(f"error: {name!r} is no command of grpo, which has {', '.join(COMMANDS)}.{meant}", file=sys.stderr)
        return 2
    return importlib.import_module(f"grpo_jax.cli.{name}").main(rest)


def console() -> int:
    """The installed `grpo` program."""
    use_huge_pages()
    return main()


def usage() -> str:
    """The commands, a line each."""
    lines = [f"  {name:<8} {about}" for name, about in COMMANDS.items()]
    return "\n".join(["usage: grpo COMMAND [--help] …", "", *lines])


if __name__ == "__main__":
    sys.exit(console())
