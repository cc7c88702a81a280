"""The codec by itself: what goes in comes out, what was touched does not, and a missing key differs from garbage."""

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from perdure.codec import ENCRYPTED, AesGcmCodec, InvalidKeysError, UnknownKeyError, payload_key_id, read_codec
from perdure.contracts.models import Undecodable
from perdure.converter import data_converter, with_encryption
from perdure.settings import ProjectError, load_settings

KEYS = {"k1": bytes(range(32)), "k2": bytes(range(32, 64))}
ONE, TWO = AesGcmCodec({"k1": KEYS["k1"]}), AesGcmCodec({"k2": KEYS["k2"], "k1": KEYS["k1"]})


def variable(**keys: bytes) -> str:
    return ",".join(f"{name}:{b64encode(key).decode()}" for name, key in keys.items())


@given(metadata=st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3), data=st.binary(max_size=300))
async def test_decryption_restores_the_payload(metadata: dict[str, bytes], data: bytes) -> None:
    payload = Payload(metadata=metadata, data=data)
    (sealed,) = await ONE.encode([payload])
    assert sealed.metadata["encoding"] == ENCRYPTED
    assert await ONE.decode([sealed]) == [payload]


@given(data=st.binary(min_size=8, max_size=300))
async def test_ciphertexts_differ_and_hide_the_data(data: bytes) -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=data)
    first, second = await ONE.encode([payload, payload])
    assert data not in first.data
    assert first.data != second.data


async def test_the_first_key_encrypts_and_all_decrypt() -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"hello"')
    (old,), (new,) = await ONE.encode([payload]), await TWO.encode([payload])
    assert (payload_key_id(old), payload_key_id(new)) == ("k1", "k2")
    assert await TWO.decode([old, new]) == [payload, payload]


async def test_a_missing_key_is_named_with_the_variable_to_set() -> None:
    (new,) = await TWO.encode([Payload(data=b"x")])
    with pytest.raises(UnknownKeyError, match=r"key 'k2'.*add k2:.*PERDURE_CODEC_KEYS"):
        await ONE.decode([new])


async def test_a_missing_key_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    codec = AesGcmCodec({"k1": KEYS["k1"]})
    (new,) = await TWO.encode([Payload(data=b"x")])
    for _ in range(3):
        with pytest.raises(UnknownKeyError):
            await codec.decode([new])
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_unencrypted_payloads_pass_unchanged() -> None:
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'{"a": 1}')
    assert await ONE.decode([plain, Payload()]) == [plain, Payload()]


@given(at=st.integers(min_value=0), bit=st.integers(min_value=0, max_value=7))
async def test_a_tampered_payload_is_undecodable(at: int, bit: int) -> None:
    (sealed,) = await ONE.encode([Payload(metadata={"encoding": b"json/plain"}, data=b'"pay 10 to Ann"')])
    data = bytearray(sealed.data)
    data[at % len(data)] ^= 1 << bit
    touched = Payload(metadata=sealed.metadata, data=bytes(data))
    (value,) = await with_encryption(ONE).decode([touched])
    assert isinstance(value, Undecodable)
    assert "k1" in value.reason


async def test_a_changed_key_id_makes_a_payload_undecodable() -> None:
    twins = AesGcmCodec({"k1": KEYS["k1"], "k9": KEYS["k1"]})
    (sealed,) = await twins.encode([Payload(data=b"x")])
    relabelled = Payload(metadata={**sealed.metadata, "encryption-key-id": b"k9"}, data=sealed.data)
    assert isinstance((await with_encryption(twins).decode([relabelled]))[0], Undecodable)


@pytest.mark.parametrize(
    ("metadata", "data"),
    [
        ({}, b"no key named" * 9),
        ({"encryption-key-id": b""}, b"no key named" * 9),
        ({"encryption-key-id": b"\xff\x00"}, b"garbage for a name" * 9),
        ({"encryption-key-id": b"k" * 99}, b"no id is so long" * 9),
        ({"encryption-key-id": b"k1"}, b"short"),
        ({"encryption-key-id": b"gone"}, b"short"),
        ({"encryption-key-id": b"k1"}, b""),
    ],
)
async def test_garbage_marked_as_encrypted_is_undecodable(metadata: Any, data: bytes) -> None:
    garbage = Payload(metadata={"encoding": ENCRYPTED, **metadata}, data=data)
    (value,) = await with_encryption(ONE).decode([garbage])
    assert isinstance(value, Undecodable)


async def test_without_keys_an_encrypted_payload_is_an_error() -> None:
    """As a value it would end a run as bad input; as an error the task waits for a worker that has the key."""
    (sealed,) = await ONE.encode([Payload(metadata={"encoding": b"json/plain"}, data=b"1")])
    with pytest.raises(UnknownKeyError, match="k1"):
        await data_converter.decode([sealed])


async def test_failures_are_encrypted_and_read_back() -> None:
    converter, failure = with_encryption(ONE), Failure()
    cause = ApplicationError("the inner secret", "a detail", type="Inner")
    error = ApplicationError("the outer secret", type="Outer")
    error.__cause__ = cause
    await converter.encode_failure(error, failure)
    stored = failure.SerializeToString()
    assert all(word not in stored for word in (b"secret", b"detail"))
    back = await converter.decode_failure(failure)
    assert isinstance(back, ApplicationError)
    assert (back.message, back.type) == ("the outer secret", "Outer")
    assert isinstance(back.__cause__, ApplicationError)
    assert (back.__cause__.message, back.__cause__.details) == ("the inner secret", ("a detail",))


async def test_the_error_of_a_missing_key_is_not_encrypted() -> None:
    failure, wrapped = Failure(), ApplicationError("Failed decoding arguments")
    wrapped.__cause__ = UnknownKeyError("k2")
    await with_encryption(ONE).encode_failure(wrapped, failure)
    assert "Failed decoding" in failure.message
    assert "add k2:" in failure.cause.message
    assert "add k2:" in str((await data_converter.decode_failure(failure)).__cause__)


def test_keys_are_read_in_their_order() -> None:
    assert read_codec(variable(k2=KEYS["k2"], k1=KEYS["k1"])).key_ids == ("k2", "k1")
    assert read_codec(f" {variable(k1=KEYS['k1'])} ").key_ids == ("k1",)


SECRET = b64encode(bytes(range(100, 132))).decode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SECRET, "entry 1: expected"),
        (f":{SECRET}", "entry 1: expected"),
        (f"{SECRET}:k1", "entry 1: expected"),
        (f"k1:{SECRET},", "entry 2: expected"),
        (f"k1:{SECRET},k2", "entry 2: expected"),
        (f"k1:{SECRET},k1:{SECRET}", "key k1 occurs twice"),
        (f"k1:{SECRET[:-4]}", "key k1 has 30 bytes"),
        (f"k1:{SECRET}{SECRET}", "key k1 is not base64"),
        ("k1:not base64!", "key k1 is not base64"),
        ("k1:ä", "key k1 is not base64"),
    ],
)
def test_bad_keys_are_refused_in_one_line_that_shows_none_of_them(text: str, why: str) -> None:
    with pytest.raises(InvalidKeysError) as refused:
        read_codec(text)
    said = str(refused.value)
    assert said.startswith(why)
    assert "\n" not in said
    assert all(SECRET[n : n + 6] not in said for n in range(len(SECRET) - 6))


def test_bad_keys_do_not_load(tmp_path: Any) -> None:
    with pytest.raises(ProjectError, match=r"^PERDURE_CODEC_KEYS: key k1 is not base64$"):
        load_settings({"PERDURE_CODEC_KEYS": "k1:??"}, tmp_path)


def test_settings_never_show_their_keys(tmp_path: Any) -> None:
    env = {"PERDURE_CODEC_KEYS": f"k1:{SECRET}", "ANTHROPIC_API_KEY": "sk-canary"}
    shown = repr(load_settings(env, tmp_path))
    assert SECRET not in shown
    assert "sk-canary" not in shown
