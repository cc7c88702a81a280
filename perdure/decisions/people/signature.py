"""Signed answers: the content that a signature covers, and the check that an answer carries a valid one.

The run's state holds public keys only, so the check is part of the run's history: every replay has the same result,
whatever keys a worker has by then, and a worker holds nothing that could forge an answer.
"""

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from perdure.contracts.run.signals import HumanInput

SIGNATURE_FORMAT = "perdure.answer.1"
PRIME = 2**255 - 19
_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD83D3D706A17C7
_SMALL_ORDER = {0, 1, PRIME - 1, _ORDER_8, PRIME - _ORDER_8}  # the y of their points, of order 4, 1, 2, 8 and 8


@dataclass(frozen=True)
class SignedQuestion:
    """The question that a signature must cover: its run, the first Temporal execution, and the call."""

    run: str
    execution: str
    question: str
    call: str | None = None


def public_text(key: Ed25519PublicKey | Ed25519PrivateKey) -> str:
    """Return a key's public half as base64."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return b64encode(public.public_bytes_raw()).decode()


def signed_bytes(run: str, execution: str, answer: HumanInput) -> bytes:
    """Return what a signature covers: run and first execution, question, call, decision, text and sender.

    As canonical JSON: names in order, no blanks, ASCII.
    """
    fields = answer.model_dump(mode="json", exclude={"signature"}, exclude_none=True)
    claims = {"format": SIGNATURE_FORMAT, "run": run, "execution": execution, **fields}
    return json.dumps(claims, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def add_signature(run: str, execution: str, answer: HumanInput, key_id: str, key: Ed25519PrivateKey) -> HumanInput:
    """Return the answer with its signature. It must name its question, and its call if there is one."""
    value = b64encode(key.sign(signed_bytes(run, execution, answer))).decode()
    return answer.evolve(signature=f"{key_id}:{value}")


def signature_error(keys: Mapping[str, str], asked: SignedQuestion, answer: HumanInput) -> str | None:
    """Return the reason why the answer's signature does not cover the question, if the run has keys."""
    if not keys:
        return None
    required = f"only answers signed with key {' or '.join(keys)} are taken"
    if answer.signature is None:
        return f"{required}, and this one is not signed: answer by the terminal or the gateway, with PERDURE_ANSWER_KEY"
    key_id, _, value = answer.signature.partition(":")
    if key_id not in keys:
        return f"{required}, and this one is signed with another key"
    names_it = (answer.question_id, answer.call) == (asked.question, asked.call)
    if not names_it or not is_valid_signature(keys[key_id], value, signed_bytes(asked.run, asked.execution, answer)):
        return "the signature is not valid for this run, question, call and answer"
    return None


def has_small_order(key: bytes) -> bool:
    """Return whether anyone can invent signatures of this public key: its point is one of the eight of small order."""
    y = int.from_bytes(key, "little") & ((1 << 255) - 1)  # without the sign of x
    return y % PRIME in _SMALL_ORDER


def is_valid_signature(public: str, value: str, data: bytes) -> bool:
    """Return whether a signature, in the one base64 that it has, is of this key and data."""
    try:
        raw = b64decode(public, validate=True)
        if has_small_order(raw):
            return False
        key = Ed25519PublicKey.from_public_bytes(raw)
        signature = b64decode(value, validate=True)
        key.verify(signature, data)
    except (InvalidSignature, Base64Error, ValueError):
        return False
    return b64encode(signature).decode() == value
