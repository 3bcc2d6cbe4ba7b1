"""finflow from a checkout: `python main.py --mode train`. The command line itself is `finflow.cli`."""

import sys

from finflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
