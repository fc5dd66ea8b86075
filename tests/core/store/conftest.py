"""A server of files on this machine that fails as it is told, and keeps count of what it sent."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from glmserve.store import download


@dataclass
class Request:
    """One that was answered."""

    path: str
    start: int
    """First byte asked for."""
    sent_bytes: int = 0


@dataclass
class FileServer:
    """Serves `files`; every list of faults is used up one entry a request of that path."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    statuses: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Answered instead of the file."""
    drops: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Bytes after which the connection breaks."""
    stall_after: int | None = None
    """Bytes after which nothing more comes, until `stop`."""
    stopped: threading.Event = field(default_factory=threading.Event)
    requests: list[Request] = field(default_factory=list)

    def sent(self, path: str) -> int:
        return sum(request.sent_bytes for request in self.requests if request.path == path)

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def add_repository(self, repo: str, commit: str, files: dict[str, bytes], large: set[str]) -> None:
        """Answer for a model as the hub does: `large` files by their sha256, the others by git's id."""
        siblings = []
        for name, content in files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry = {"rfilename": name, "size": len(content), "blobId": blob}
            if name in large:
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            siblings.append(entry)
            self.files[f"/{repo}/resolve/{commit}/{name}"] = content
        answer = {"id": repo, "sha": commit, "siblings": siblings}
        self.files[f"/api/models/{repo}/revision/{commit}"] = json.dumps(answer).encode()

    def add_wheel(self, wheel: Path, package: str) -> None:
        """Answer for a package as an index does."""
        content = wheel.read_bytes()
        with zipfile.ZipFile(wheel) as archive:
            metadata = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA")))
        digest, separate = hashlib.sha256(content).hexdigest(), hashlib.sha256(metadata).hexdigest()
        link = f'<a href="/files/{wheel.name}#sha256={digest}" data-core-metadata="sha256={separate}">{wheel.name}</a>'
        self.files[f"/files/{wheel.name}.metadata"] = metadata
        self.files[f"/files/{wheel.name}"] = content
        self.files[f"/simple/{package}/"] = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            content = server.files.get(path)
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if server.ranges else None
            tag = f'"{hashlib.sha256(content or b"").hexdigest()}"'
            if match and self.headers.get("If-Range", tag) != tag:
                match = None
            start = int(match[1]) if match else 0
            end = min(int(match[2]) + 1, len(content or b"")) if match and match[2] else len(content or b"")
            request = Request(path, start)
            server.requests.append(request)
            status = server.statuses[path].pop(0) if server.statuses[path] else 200 if content is not None else 404
            if status != 200 or content is None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if match and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if match else 200)
            if match:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
            self.send_header("Content-Length", str(end - start))
            self.send_header("Content-Type", "text/html" if path.startswith("/simple/") else "application/octet-stream")
            self.send_header("ETag", tag)
            self.end_headers()
            body = content[start:end]
            drop = server.drops[path].pop(0) if server.drops[path] else None
            limit = min(n for n in (drop, server.stall_after, len(body)) if n is not None)
            for at in range(0, limit, 16384):
                piece = body[at : min(at + 16384, limit)]
                self.wfile.write(piece)
                request.sent_bytes += len(piece)
            self.wfile.flush()
            if limit < len(body):
                if drop is None:
                    server.stopped.wait(30)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def server() -> Iterator[FileServer]:
    files = FileServer()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _handler(files))
    httpd.handle_error = lambda request, client_address: None  # type: ignore[method-assign]  # a client that leaves
    files.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.05,))
    thread.start()
    yield files
    files.stopped.set()
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr(download, "PAUSE_S", 0.001)
