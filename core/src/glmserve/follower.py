"""`python -m glmserve.follower`: a rank other than 0, started by the transport of rank 0 on the same machine."""

from __future__ import annotations

import logging
import sys

from glmserve.api import GlmserveError
from glmserve.cluster.child import inherit
from glmserve.cluster.local import LocalTransport
from glmserve.joining import join


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        inherited = inherit()
        link = LocalTransport().open(inherited.topology, inherited.rank)
        try:
            join(link)
        finally:
            link.close()
    except GlmserveError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
