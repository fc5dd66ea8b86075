import hashlib
import os
import stat

import pytest
from glmserve.api import ConfigError
from glmserve.server.auth import OPEN_PATHS, read_keys

from .conftest import HELLO, error
from .fake_engine import FakeEngine

KEYS = tuple(hashlib.sha256(key).digest() for key in (b"first", b"second"))


def test_every_route_but_the_open_list_needs_a_key(start):
    live = start(keys=KEYS)
    found = {(method, route.path) for route in live.app.routes for method in getattr(route, "methods", None) or ()}
    described = live.app.openapi()["paths"].items()
    found |= {(method.upper(), path) for path, item in described for method in item}
    assert ("POST", "/v1/chat/completions") in found
    assert ("GET", "/openapi.json") in found
    for method, path in sorted(found | {("GET", "/nowhere"), ("GET", "/livez/"), ("GET", "//livez")}):
        response = live.client.request(method, path.replace("{id}", "default"))
        if path in OPEN_PATHS:
            assert response.status_code != 401, path
        else:
            assert response.status_code == 401, (method, path)


def test_keys_in_both_headers_and_no_others(start):
    live = start(keys=KEYS)
    for headers in ({"Authorization": "Bearer second"}, {"authorization": "bearer first"}, {"X-API-Key": "first"}):
        assert live.client.post("/v1/chat/completions", json=HELLO, headers=headers).status_code == 200
    for headers in (
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer third"},
        {"Authorization": "Basic first"},
        {"Authorization": "first"},
        {"X-API-Key": ""},
        {"X-API-Key": "firs\u00e9".encode("latin-1")},
    ):
        refusal = error(live.client.post("/v1/chat/completions", json=HELLO, headers=headers), 401)
        assert (refusal["type"], refusal["code"]) == ("authentication_error", "invalid_api_key")


def test_each_key_has_a_cache_of_its_own(start):
    engine = FakeEngine()
    live = start(engine, keys=KEYS)
    for key in ("first", "second", "first"):
        live.client.post("/v1/chat/completions", json=HELLO, headers={"X-API-Key": key})
    assert [request.salt for request in engine.requests] == [KEYS[0], KEYS[1], KEYS[0]]


def test_the_key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# mine\nfirst\n\n  second  \n")
    path.chmod(0o600)
    assert read_keys(path) == KEYS
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_keys(path)
    os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
    path.write_text("# none\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "missing")
