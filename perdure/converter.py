"""The data converter of every client and worker: pydantic's, except that nothing undecodable gets stuck.

What a workflow or handler takes untyped arrives as `Undecodable` where it cannot be read (nested too deep, an encoding
that nobody here knows): an exception at that place would fail the workflow task, and be retried for ever. That is just
what is wanted where only a key is missing: the run waits, and goes on once the key is there.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter, pydantic_data_converter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    ExternalStorage,
    PayloadCodec,
    PayloadConverter,
    StorageDriver,
)

from contracts.models import Terse, Undecodable
from contracts.strict_json import read_json
from decisions.text.formatting import cut
from perdure.codec import UNREADABLE, UnknownKey, key_id_of, unreadable

LARGE = 64 * 1024  # bytes; a step of a run is smaller, its state and what comes from outside may not be


# The SDK makes a converter for each run, and pydantic's would build the validators of its types anew for each.
_JSON = PydanticJSONPlainPayloadConverter()
_BY_ENCODING = tuple(
    _JSON if converter.encoding == _JSON.encoding else converter
    for converter in DefaultPayloadConverter.default_encoding_payload_converters
)


class TolerantPayloadConverter(CompositePayloadConverter):
    """Typed values are decoded as ever; a fault in one of our own is a bug, and should be seen as one."""

    def __init__(self) -> None:
        super().__init__(*_BY_ENCODING)

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        return super().to_payloads([_tersely(value) if isinstance(value, Terse) else value for value in values])

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        hints: Sequence[type | None] = type_hints or [None] * len(payloads)
        return [self._read(payload, hint) for payload, hint in zip(payloads, hints, strict=False)]

    def _read(self, payload: Payload, hint: type | None) -> Any:
        if (key_id := key_id_of(payload)) is not None:  # nothing has decrypted it: this process has no codec
            raise UnknownKey(key_id)
        if hint is not None and hint is not Any:
            return super().from_payloads([payload], [hint])[0]
        if payload.metadata.get("encoding") == UNREADABLE:
            return Undecodable(reason=cut(payload.data.decode(errors="replace"), 200))
        try:
            _must_say_one_thing(payload)
            return super().from_payloads([payload])[0]
        except Exception as error:  # noqa: BLE001 - whatever a foreign payload breaks, it must not break the run
            return Undecodable(reason=" ".join(str(error).split())[:200])


def _must_say_one_thing(payload: Payload) -> None:
    """Raises JsonError for JSON that other readers may understand differently than the one here, or not at all."""
    if payload.metadata.get("encoding") == b"json/plain":
        read_json(payload.data)


def _tersely(value: Terse) -> RawValue:
    data = value.model_dump_json(exclude_defaults=True).encode()
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))


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


@dataclass(frozen=True)
class TolerantDataConverter(DataConverter):
    """A reference to an object store that leads nowhere is unreadable, and no more than that.

    Anybody who may signal a run can send one. The SDK's own converter fails the workflow task, again and again. That is
    right only where the store cannot be asked just now, an OSError: the run waits until it answers.
    """

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await _each(super()._decode_reference_payload_sequence, payloads)

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await _each(super()._external_retrieve_payload_sequence, payloads)


async def _each(
    read: Callable[[Sequence[Payload]], Awaitable[list[Payload]]], payloads: Sequence[Payload]
) -> list[Payload]:
    try:
        return await read(payloads)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a foreign payload breaks, it must not break the run
        if len(payloads) > 1:
            return [(await _each(read, [payload]))[0] for payload in payloads]
        return [unreadable(f"it is kept outside of Temporal, and cannot be had: {cut(str(error), 200)}")]


data_converter = TolerantDataConverter(
    payload_converter_class=TolerantPayloadConverter,
    failure_converter_class=pydantic_data_converter.failure_converter_class,
)


def encrypting(codec: PayloadCodec) -> DataConverter:
    """The converter of those who have keys."""
    return replace(data_converter, payload_codec=codec, failure_converter_class=EncryptedFailures)


def offloading(converter: DataConverter, store: StorageDriver) -> DataConverter:
    """Keeps what is large in `store`, encrypted where the converter encrypts. Temporal has a reference to it."""
    return replace(converter, external_storage=ExternalStorage([store], payload_size_threshold=LARGE))
