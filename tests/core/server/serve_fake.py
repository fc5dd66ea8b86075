"""A server process around the fake engine: python -m tests.core.server.serve_fake PORT REPLY DELAY DRAIN_S MODE"""

import sys
import time

from glmserve.api import CheckpointError, GlmserveError
from glmserve.server.app import ServerSettings
from glmserve.server.run import serve

from .fake_engine import FakeEngine, bundle


def main(port: str, reply: str, delay: str, drain_s: str, mode: str) -> None:
    def load():
        if mode == "slow":
            time.sleep(60)
        if mode == "broken":
            raise CheckpointError("The model is broken.")
        return FakeEngine(reply, float(delay)), bundle(), "fake"

    host = "0.0.0.0" if mode == "open" else "127.0.0.1"
    try:
        serve(ServerSettings(host=host, port=int(port), drain_s=float(drain_s)), load)
    except GlmserveError as error:
        print(f"glmserve: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
