"""`python -m glmserve.follower`: a rank other than 0, started by the transport of rank 0 on the same machine."""

from __future__ import annotations

import logging
import sys

from glmserve.api import GlmserveError
from glmserve.cluster.local import inherited_link
from glmserve.joining import join


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    link = inherited_link()
    try:
        join(link)
    except GlmserveError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        link.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
