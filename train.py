"""Trains a reasoning model: `python train.py [--config configs/x.yaml] [--mesh 8x8] [--grpo.kl_coef 0.02]`.

Without --config it runs configs/arithmetic.yaml. `python train.py --help` lists every key.
"""

import sys
from pathlib import Path

from grpo_jax.cli.huge_pages import use_huge_pages
from grpo_jax.cli.train import main

if __name__ == "__main__":
    use_huge_pages()
    default = Path(__file__).resolve().parent / "configs" / "arithmetic.yaml"
    sys.exit(main(default_config=default, program="python train.py"))
