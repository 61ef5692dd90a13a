import pytest

from hermes_bridges.errors import ConfigError
from hermes_bridges.wishee.settings import BRIDGE_URL, insecure, parse

HOME = {"HOME": "/home/ana"}


def faults(**environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse({**HOME, **environ})
    return caught.value.faults


def test_the_defaults():
    found = parse(HOME)
    assert (found.bridge_url, found.claim_url) == (None, None)
    assert (found.read_scope, found.allow_insecure) == ("all", False)
    assert found.hermes_home == "/home/ana/.hermes"
    assert found.directory == "/home/ana/.hermes/wishee-connector"
    assert found.legacy_home == "/home/ana"
    assert found.warnings == ()


def test_all_of_them_given():
    found = parse(
        {
            "HERMES_HOME": "/srv/hermes",
            "WISHEE_BRIDGE_URL": "wss://bridge.example/ws",
            "WISHEE_CLAIM_URL": "https://bridge.example/claim",
            "WISHEE_READ_SCOPE": "wishee",
            "WISHEE_ALLOW_INSECURE": "1",
        }
    )
    assert found.bridge_url == "wss://bridge.example/ws"
    assert found.claim_url == "https://bridge.example/claim"
    assert (found.read_scope, found.allow_insecure) == ("wishee", True)
    assert found.directory == "/srv/hermes/wishee-connector"
    assert found.legacy_home is None


def test_W24_plain_ws_is_for_this_host_only():
    for url in ("ws://bridge.example/ws", "ws://10.0.0.1/", "ws://127.0.0.1.example/"):
        assert "WISHEE_ALLOW_INSECURE=1" in faults(WISHEE_BRIDGE_URL=url)[0]
        allowed = parse({**HOME, "WISHEE_BRIDGE_URL": url, "WISHEE_ALLOW_INSECURE": "1"})
        assert allowed.bridge_url == url
        # That of binding.json is asked about later.
        assert insecure(url, False) and not insecure(url, True)
    for url in ("ws://127.0.0.1:8080/ws", "ws://localhost/", "ws://[::1]:1/", BRIDGE_URL):
        assert parse({**HOME, "WISHEE_BRIDGE_URL": url}).bridge_url == url
        assert not insecure(url, False)
    assert "https://" in faults(WISHEE_CLAIM_URL="http://bridge.example/")[0]


def test_every_fault_is_told_at_once():
    found = faults(
        WISHEE_BRIDGE_URL="https://bridge.example",
        WISHEE_CLAIM_URL="bridge",
        WISHEE_READ_SCOPE="some",
        WISHEE_ALLOW_INSECURE="perhaps",
        HERMES_HOME="hermes",
    )
    assert [fault.partition(":")[0].split()[0] for fault in found] == [
        "WISHEE_BRIDGE_URL",
        "WISHEE_CLAIM_URL",
        "WISHEE_READ_SCOPE",
        "WISHEE_ALLOW_INSECURE",
        "HERMES_HOME",
    ]


def test_without_any_home():
    with pytest.raises(ConfigError, match="HERMES_HOME"):
        parse({})


def test_a_slip_of_the_pen_is_a_warning():
    found = parse({**HOME, "WISHEE_BRIDGE": "x", "WISHEE_ALLOW_ALL_USERS": "true"})
    assert found.warnings == ("WISHEE_BRIDGE is no setting; the nearest one is WISHEE_BRIDGE_URL",)
