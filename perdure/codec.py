"""The payload codec: encrypts payloads with AES-256-GCM before they leave the process.

The first key encrypts and all keys decrypt, so keys can be rotated while runs are active. The key id is bound to the
ciphertext. Plain payloads pass: users can start and signal runs with plain JSON.
"""

import binascii
import logging
import os
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from perdure.decisions.errors import ReportedError

CODEC_KEYS_VARIABLE = "PERDURE_CODEC_KEYS"
ENCRYPTED = b"binary/encrypted"
UNREADABLE = b"binary/unreadable"  # a payload that cannot be decrypted, or whose stored data is gone

_KEY_ID = "encryption-key-id"
_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_ID = re.compile(r"[A-Za-z0-9_.-]{1,32}")  # shorter than a key in base64, so that a key is never shown as an id

logger = logging.getLogger(__name__)


class InvalidKeysError(ValueError):
    """The keys are invalid. The message is one line and shows no key."""


class UnknownKeyError(ReportedError):
    """A payload needs a key that this process lacks. In a workflow the task must fail, so that it is retried."""

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"a payload is encrypted with key {key_id!r}, which is missing: "
            f"add {key_id}:<its key> to {CODEC_KEYS_VARIABLE}"
        )


class AesGcmCodec(PayloadCodec):
    """A codec with `keys` by id; the first one encrypts."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # most clients have no keys

        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self.key_ids = tuple(keys)
        self._missed: set[str] = set()

    @property
    def key_id(self) -> str:
        """The id of the key that encrypts."""
        return self.key_ids[0]

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt payloads; broken ones become `UNREADABLE`, as a bad signal must not stop a run. Raises
        UnknownKeyError.
        """
        return [self.decrypt(payload) for payload in payloads]

    def _encrypt(self, payload: Payload) -> Payload:
        bound = self.key_id.encode()
        nonce = os.urandom(_NONCE_BYTES)
        data = nonce + self._ciphers[self.key_id].encrypt(nonce, payload.SerializeToString(), bound)
        return Payload(metadata={"encoding": ENCRYPTED, _KEY_ID: bound}, data=data)

    def decrypt(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCRYPTED:
            return payload
        key_id = payload_key_id(payload)
        if key_id is None:
            return unreadable_payload("it says that it is encrypted, but not with which key")
        if len(payload.data) < _NONCE_BYTES + _TAG_BYTES:
            return unreadable_payload("it says that it is encrypted, but is too short for that")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            error = UnknownKeyError(key_id)
            if key_id not in self._missed:  # logged once: a waiting run retries
                self._missed.add(key_id)
                logger.error("%s; runs that need it wait", error)
            raise error
        from cryptography.exceptions import InvalidTag

        nonce, sealed = payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:]
        try:
            return Payload.FromString(cipher.decrypt(nonce, sealed, key_id.encode()))
        except InvalidTag:
            return unreadable_payload(f"it cannot be decrypted with key {key_id!r}, which it names")


def payload_key_id(payload: Payload) -> str | None:
    """Return the key id of an encrypted payload, if valid."""
    name = payload.metadata.get(_KEY_ID, b"").decode(errors="replace")
    return name if payload.metadata.get("encoding") == ENCRYPTED and _ID.fullmatch(name) else None


def unreadable_payload(reason: str) -> Payload:
    """Return a placeholder for an unreadable payload, which decodes to `Undecodable` without a type."""
    return Payload(metadata={"encoding": UNREADABLE}, data=reason.encode())


def read_codec(text: str) -> AesGcmCodec:
    """Return the codec of "k2:<base64 of 32 bytes>,k1:<…>". Raises InvalidKeysError."""
    return AesGcmCodec({key_id: key for key_id, key, _ in parse_key_entries(text)})


def parse_key_entries(text: str, mark: str = "") -> list[tuple[str, bytes, bool]]:
    """Return the id of each key, its 32 bytes, and whether `mark` precedes them. Raises InvalidKeysError."""
    entries: dict[str, tuple[str, bytes, bool]] = {}
    for number, entry in enumerate(text.split(","), 1):
        key_id, _, encoded = entry.strip().partition(":")
        if not encoded or not _ID.fullmatch(key_id):
            raise InvalidKeysError(
                f'entry {number}: expected "id:key", the id of at most 32 letters, digits, "_", "." and "-"'
            )
        if key_id in entries:
            raise InvalidKeysError(f"key {key_id} occurs twice")
        is_marked = bool(mark) and encoded.startswith(mark)
        entries[key_id] = (key_id, _parse_key(key_id, encoded.removeprefix(mark) if is_marked else encoded), is_marked)
    return list(entries.values())


def _parse_key(key_id: str, encoded: str) -> bytes:
    try:
        key = b64decode(encoded.translate(str.maketrans("-_", "+/")), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidKeysError(f"key {key_id} is not base64") from None
    if len(key) != _KEY_BYTES:
        raise InvalidKeysError(f"key {key_id} has {len(key)} bytes, not {_KEY_BYTES} (openssl rand -base64 32)")
    return key
