"""`python -m s3verbs.gateway`: the same as the command `s3verbs`."""

import sys

from s3verbs.gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
