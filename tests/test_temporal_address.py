"""What is wrong with an address of Temporal, in one line that says what to write."""

import pytest

from perdure.client.connection import configured_address, connect
from perdure.client.errors import TemporalUnavailableError

BAD = {
    "http://127.0.0.1:7233": "leave out http://",
    "grpc://temporal.example:7233": "leave out grpc://",
    "localhost": "it has no port",
    "127.0.0.1:": "its port is not a number",
    "127.0.0.1:99999": "its port is not a number",
    "127.0.0.1:abc": "its port is not a number",
    "127.0.0.1:7233/": "its port is not a number",
    "127.0.0.1:٧": "its port is not a number",
    ":7233": "it has no host",
    "::1:7233": "in brackets",
    "127.0.0.1:7233 ": "a blank",
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", "/nonexistent")


@pytest.mark.parametrize(("address", "reason"), BAD.items())
async def test_what_is_no_address_is_named_with_what_is_expected(
    monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    expected = rf"expected host:port such as 127\.0\.0\.1:7233; .*{reason}"
    with pytest.raises(TemporalUnavailableError, match=f"^address=.*{expected}"):
        await connect(address)
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    with pytest.raises(TemporalUnavailableError, match=f"^TEMPORAL_ADDRESS=.*{expected}"):
        configured_address()


@pytest.mark.parametrize("address", ["127.0.0.1:7233", "[::1]:7233", "my-namespace.a1b2c.tmprl.cloud:7233"])
def test_an_address_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    assert configured_address() == address


def test_tls_is_true_or_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another value is not taken for "no": the SDK says nothing about it."""
    monkeypatch.setenv("TEMPORAL_TLS", "maybe")
    with pytest.raises(TemporalUnavailableError, match=r"^TEMPORAL_TLS=maybe: expected true or false"):
        configured_address()
