"""The data converter of every client and worker: pydantic's, except that nothing undecodable gets stuck.

What a workflow or handler takes untyped arrives as `Undecodable` where it cannot be read (nested too deep, an encoding
that nobody here knows): an exception at that place would fail the workflow task, and be retried for ever. That is just
what is wanted where only a key is missing: the run waits, and goes on once the key is there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadCodec, PayloadConverter

from codec import UNREADABLE, UnknownKey, key_id_of
from contracts.value import Undecodable


class TolerantPayloadConverter(PydanticPayloadConverter):
    """Typed values are decoded as ever; a fault in one of our own is a bug, and should be seen as one."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        hints: Sequence[type | None] = type_hints or [None] * len(payloads)
        return [self._read(payload, hint) for payload, hint in zip(payloads, hints, strict=False)]

    def _read(self, payload: Payload, hint: type | None) -> Any:
        if (key_id := key_id_of(payload)) is not None:  # nothing has decrypted it: this process has no codec
            raise UnknownKey(key_id)
        if hint is not None and hint is not Any:
            return super().from_payloads([payload], [hint])[0]
        if payload.metadata.get("encoding") == UNREADABLE:
            return Undecodable(reason=payload.data.decode())
        try:
            return super().from_payloads([payload])[0]
        except Exception as error:  # noqa: BLE001 - whatever a foreign payload breaks, it must not break the run
            return Undecodable(reason=" ".join(str(error).split())[:200])


class EncryptedFailures(DefaultFailureConverter):
    """Message and trace of a failure are payloads, and encrypted like all others.

    Only that a key is missing stays readable: those who are to know it may not have the key of who says it.
    """

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        if isinstance(exception, UnknownKey) or isinstance(exception.__cause__, UnknownKey):
            failure.message = str(exception)
            failure.ClearField("encoded_attributes")


data_converter = replace(pydantic_data_converter, payload_converter_class=TolerantPayloadConverter)


def encrypting(codec: PayloadCodec) -> DataConverter:
    """The converter of those who have keys."""
    return replace(data_converter, payload_codec=codec, failure_converter_class=EncryptedFailures)
