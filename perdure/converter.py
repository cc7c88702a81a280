"""The data converter of every client and worker: pydantic's, but undecodable payloads do not block a run.

An untyped payload that cannot be read (too deep, an unknown encoding) becomes `Undecodable`: an exception would fail
the workflow task, which is then retried forever. A missing key does raise: the run waits until the key is added.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.common import RawValue
from temporalio.contrib.pydantic import (
    PydanticJSONPlainPayloadConverter,
    PydanticPayloadConverter,
)
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

from perdure.codec import UNREADABLE, UnknownKeyError, payload_key_id, unreadable_payload
from perdure.contracts.models import SparseModel, Undecodable
from perdure.contracts.strict_input import parse_strict_json
from perdure.decisions.text.formatting import truncate

MAX_TRACE = 1200  # characters of a failure; each cause keeps half of what the one before keeps
OFFLOAD_THRESHOLD = 64 * 1024  # bytes; a run's step is smaller, its state and external input may be larger


# Shared, because the SDK creates a converter for each run, and pydantic's would rebuild its validators each time.
_JSON = PydanticJSONPlainPayloadConverter()
_BY_ENCODING = tuple(
    _JSON if converter.encoding == _JSON.encoding else converter
    for converter in DefaultPayloadConverter.default_encoding_payload_converters
)


class TolerantPayloadConverter(PydanticPayloadConverter):
    """Decodes untyped payloads leniently; an error in a typed one is a bug and raises."""

    def __init__(self) -> None:
        CompositePayloadConverter.__init__(self, *_BY_ENCODING)

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        return super().to_payloads(
            [_to_sparse_payload(value) if isinstance(value, SparseModel) else value for value in values]
        )

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        hints: Sequence[type | None] = type_hints or [None] * len(payloads)
        return [self._read_payload(payload, hint) for payload, hint in zip(payloads, hints, strict=False)]

    def _read_payload(self, payload: Payload, hint: type | None) -> Any:
        if (key_id := payload_key_id(payload)) is not None:  # still encrypted: this process has no codec
            raise UnknownKeyError(key_id)
        if hint is not None and hint is not Any:
            return super().from_payloads([payload], [hint])[0]
        if payload.metadata.get("encoding") == UNREADABLE:
            return Undecodable(reason=truncate(payload.data.decode(errors="replace"), 200))
        try:
            if payload.metadata.get("encoding") == b"json/plain":
                parse_strict_json(payload.data)
            return super().from_payloads([payload])[0]
        except Exception as error:  # noqa: BLE001 - no foreign payload may break the run
            return Undecodable(reason=" ".join(str(error).split())[:200])


@cache
def extend_payload_converter(kind: type[PayloadConverter]) -> type[PayloadConverter] | None:
    """Return Perdure's converter over another one that is pydantic's or derives from it; None for any other."""
    if kind in (DefaultPayloadConverter, PydanticPayloadConverter):
        return TolerantPayloadConverter
    if issubclass(kind, TolerantPayloadConverter):
        return kind
    if not issubclass(kind, PydanticPayloadConverter):
        return None
    members = {"__init__": kind.__init__, "__doc__": f"`TolerantPayloadConverter` over `{kind.__name__}`."}
    return type(f"Tolerant{kind.__name__}", (TolerantPayloadConverter, kind), members)


def _to_sparse_payload(value: SparseModel) -> RawValue:
    data = value.model_dump_json(exclude_defaults=True).encode()
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))


class BoundedFailureConverter(DefaultFailureConverter):
    """Keeps the end of a long trace.

    Of the failure of an activity that will be retried, Temporal keeps 4 KiB. A larger one loses its type, and an
    encrypted one its message, so that nothing says what the activity waits for.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        _bound_traces(failure, MAX_TRACE, payload_converter)


def _bound_traces(failure: Failure, most: int, converter: PayloadConverter) -> None:
    """Keep so many characters of the failure's trace, and half as many of its cause's."""
    if failure.HasField("encoded_attributes"):
        attributes = converter.from_payload(failure.encoded_attributes)
        attributes["stack_trace"] = _end_of(attributes["stack_trace"], most)
        failure.encoded_attributes.CopyFrom(converter.to_payload(attributes))
    failure.stack_trace = _end_of(failure.stack_trace, most)
    if failure.HasField("cause"):
        _bound_traces(failure.cause, most // 2, converter)


def _end_of(trace: str, most: int) -> str:
    return trace if len(trace) <= most else f"…{trace[len(trace) - most + 1 :]}"


class EncryptedFailureConverter(BoundedFailureConverter):
    """Encrypts message and trace of a failure, as payloads.

    A missing key stays readable: its readers may not have the key of the writer.
    """

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        if isinstance(exception, UnknownKeyError) or isinstance(exception.__cause__, UnknownKeyError):
            failure.message = str(exception)
            failure.ClearField("encoded_attributes")


@dataclass(frozen=True)
class TolerantDataConverter(DataConverter):
    """Makes a dangling reference to an object store an unreadable payload.

    Any sender of a signal can send one, and the SDK's converter would fail the workflow task over and over. An OSError
    does raise: the store is down, and the run waits until it answers.
    """

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await _read_each(super()._decode_reference_payload_sequence, payloads)

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await _read_each(super()._external_retrieve_payload_sequence, payloads)


async def _read_each(
    read: Callable[[Sequence[Payload]], Awaitable[list[Payload]]], payloads: Sequence[Payload]
) -> list[Payload]:
    try:
        return await read(payloads)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - no foreign payload may break the run
        if len(payloads) > 1:
            return [(await _read_each(read, [payload]))[0] for payload in payloads]
        return [unreadable_payload(f"it is kept outside of Temporal, and cannot be had: {truncate(str(error))}")]


data_converter = TolerantDataConverter(
    payload_converter_class=TolerantPayloadConverter,
    failure_converter_class=BoundedFailureConverter,
)


def with_encryption(codec: PayloadCodec) -> DataConverter:
    """Return the converter with encryption."""
    return replace(data_converter, payload_codec=codec, failure_converter_class=EncryptedFailureConverter)


def with_offloading(converter: DataConverter, store: StorageDriver) -> DataConverter:
    """Return a converter that stores large payloads in `store`; Temporal gets a reference."""
    return replace(converter, external_storage=ExternalStorage([store], payload_size_threshold=OFFLOAD_THRESHOLD))


def converter_for(codec: PayloadCodec | None, payloads: StorageDriver | None) -> DataConverter:
    """Return the converter that encrypts with `codec` and stores large payloads in `payloads`, if there are these."""
    converter = with_encryption(codec) if codec else data_converter
    return with_offloading(converter, payloads) if payloads else converter
