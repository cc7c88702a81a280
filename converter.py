"""The data converter of every client and worker: pydantic's, except that nothing undecodable gets stuck.

What a workflow or handler takes untyped arrives as `Undecodable` where it cannot be read (nested too deep, an encoding
that nobody here knows): an exception at that place would fail the workflow task, and be retried for ever.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter

from contracts.value import Undecodable


class TolerantPayloadConverter(PydanticPayloadConverter):
    """Typed values are decoded as ever; a fault in one of our own is a bug, and should be seen as one."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        hints: Sequence[type | None] = type_hints or [None] * len(payloads)
        return [self._read(payload, hint) for payload, hint in zip(payloads, hints, strict=False)]

    def _read(self, payload: Payload, hint: type | None) -> Any:
        if hint is not None and hint is not Any:
            return super().from_payloads([payload], [hint])[0]
        try:
            return super().from_payloads([payload])[0]
        except Exception as error:  # noqa: BLE001 - whatever a foreign payload breaks, it must not break the run
            return Undecodable(reason=" ".join(str(error).split())[:200])


data_converter = replace(pydantic_data_converter, payload_converter_class=TolerantPayloadConverter)
