"""`python -m rnnewton` is the `rnnewton` command."""

import sys

from rnnewton.cli import main

if __name__ == "__main__":
    sys.exit(main())
