"""`python -m pallas_kernels.check`."""

import sys

from pallas_kernels.check.command import main

if __name__ == "__main__":
    sys.exit(main())
