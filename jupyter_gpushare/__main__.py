"""Entry point of `python -m jupyter_gpushare`, which is the same as `jupyter gpushare`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
