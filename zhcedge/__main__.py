"""`python -m zhcedge` is `zhc-edge`."""

import sys

from zhcedge.cli import main

if __name__ == "__main__":
    sys.exit(main())
