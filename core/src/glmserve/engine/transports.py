"""The built-in transport: `local`, one rank in the server's own process."""

from __future__ import annotations

from glmserve.api import ALONE, ConfigError, Finding, Link, Topology, Transport, UnavailableError


class LocalLink(Link):
    """A world of one: there is nobody to tell."""

    rank = 0
    world_size = 1

    group = ALONE

    def publish(self, message: bytes) -> None:
        pass

    def collect(self, starting: bool = False) -> list[bytes]:
        return []

    def receive(self, starting: bool = False) -> bytes:
        raise UnavailableError("A world of one has nobody to hear from.")

    def report(self, message: bytes) -> None:
        raise UnavailableError("A world of one has nobody to report to.")

    def abandon(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass


class LocalTransport(Transport):
    name = "local"

    def preflight(self, topology: Topology) -> list[Finding]:
        if topology.world_size != 1:
            return [
                Finding("error", f"transport 'local' runs one rank, not {topology.world_size}; leave one host in it.")
            ]
        return [Finding("ok", "one rank in this process")]

    def open(self, topology: Topology, rank: int) -> Link:
        errors = [f.message for f in self.preflight(topology) if f.level == "error"]
        if errors:
            raise ConfigError(errors[0])
        return LocalLink()
