"""A run's history as plain JSON: every event of every execution, with decoded payloads."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.common import RawValue

from contracts.models import nesting_depth
from contracts.run.export import ExportedExecution
from perdure.client.run_list import RunInfo, first_retained

MAX_PAYLOAD_NESTING = 100  # levels of a payload that is exported as JSON; a deeper one is base64


@dataclass(frozen=True)
class HistoryReader:
    client: Client

    async def read_executions(self, run: RunInfo) -> list[ExportedExecution]:
        """Return all executions of the run that the server still has. Raises UnknownKeyError."""
        execution: str | None = await first_retained(self.client, run)
        executions = []
        while execution is not None:
            handle = self.client.get_workflow_handle(run.execution.id, run_id=execution)
            events, successor = [], None
            async for event in handle.fetch_history_events():
                events.append(await self._event_to_json(event))
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                    successor = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
            executions.append(ExportedExecution(execution=execution, events=events))
            execution = successor
        return executions

    async def _event_to_json(self, event: HistoryEvent) -> dict[str, Any]:
        """Convert an event to an entry of `contracts.run.export.ExportedExecution`."""
        kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower()
        plain = {"id": event.event_id, "type": kind, "at": event.event_time.ToDatetime(UTC).isoformat()}
        if event.user_metadata.HasField("summary"):
            plain["summary"] = await self._payload_to_json(event.user_metadata.summary)
        attributes = event.WhichOneof("attributes")
        fields: Mapping[str, Any] = await self._to_json(getattr(event, attributes)) if attributes else {}
        return {**fields, **plain}

    async def _to_json(self, value: Any) -> Any:
        """Convert a value of Temporal's API to JSON."""
        plain: Any
        match value:
            case Payload():
                plain = await self._payload_to_json(value)
            case Payloads():
                plain = [await self._payload_to_json(payload) for payload in value.payloads]
            case Timestamp():
                plain = value.ToDatetime(UTC).isoformat()
            case Duration():
                plain = value.ToTimedelta().total_seconds()
            case Message():
                plain = {field.name: await self._field_to_json(field, inner) for field, inner in value.ListFields()}
            case bytes():
                plain = base64.b64encode(value).decode()
            case _:
                plain = value
        return plain

    async def _field_to_json(self, field: Any, value: Any) -> Any:
        if field.message_type and field.message_type.GetOptions().map_entry:
            return {str(key): await self._to_json(inner) for key, inner in value.items()}
        values = value if field.is_repeated else [value]
        if field.enum_type:
            plain: list[Any] = [_enum_name(field.enum_type, number) for number in values]
        else:
            plain = [await self._to_json(element) for element in values]
        return plain if field.is_repeated else plain[0]

    async def _payload_to_json(self, payload: Payload) -> Any:
        """Decode a payload, also from the object store. Raises UnknownKeyError, OSError."""
        clear: Payload = (await self.client.data_converter.decode([payload], [RawValue]))[0].payload
        try:
            value = json.loads(clear.data) if clear.data else None
            if nesting_depth(value) <= MAX_PAYLOAD_NESTING:
                return value
        except (ValueError, RecursionError):  # not JSON, or too deep to write inside other values
            pass
        encoding = clear.metadata.get("encoding", b"").decode(errors="replace")
        return {"encoding": encoding, "base64": base64.b64encode(clear.data).decode()}


def _enum_name(kind: EnumDescriptor, number: int) -> str:
    known = kind.values_by_number.get(number)
    return known.name if known else str(number)
