"""A run's history as plain JSON: every event of every execution, with decoded payloads."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
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
from temporalio.service import RPCError

from contracts.models import nesting_depth
from contracts.run.export import ExportedExecution
from perdure.client.run_list import RunInfo, first_retained

POLL_ENDED = "branch tokens"  # in the server's message if it ends a long poll
MAX_POLL_RETRIES = 5  # in a row
MAX_PAYLOAD_NESTING = 100  # levels of a payload that is exported as JSON; a deeper one is base64


@dataclass(frozen=True)
class HistoryReader:
    """Reads the history of a run, also as it grows."""

    client: Client
    retry_pause: float = 0.3  # seconds

    async def read_executions(self, run: RunInfo) -> list[ExportedExecution]:
        """Return all executions of the run that the server still has. Raises UnknownKeyError."""
        executions: dict[str, list[dict[str, Any]]] = {}
        async for execution, event in self.read_events(run):
            executions.setdefault(execution, []).append(await self.event_to_json(event))
        return [ExportedExecution(execution=execution, events=events) for execution, events in executions.items()]

    async def read_events(self, run: RunInfo, *, follow: bool = False) -> AsyncGenerator[tuple[str, HistoryEvent]]:
        """Yield each event with its execution, from the earliest that the server still has."""
        execution: str | None = await first_retained(self.client, run)
        while execution is not None:
            current, execution = execution, None
            async with aclosing(self._execution_events(run.execution.id, current, follow=follow)) as events:
                async for event in events:
                    yield current, event
                    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                        execution = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id

    async def _execution_events(
        self, workflow_id: str, execution: str, *, follow: bool
    ) -> AsyncGenerator[HistoryEvent]:
        """Yield each event once. If the run changes at a bad moment the server ends the poll; it is retried."""
        handle = self.client.get_workflow_handle(workflow_id, run_id=execution)
        seen, failures = 0, 0
        while True:
            try:
                async for event in handle.fetch_history_events(wait_new_event=follow):
                    if event.event_id > seen:
                        seen, failures = event.event_id, 0
                        yield event
                return
            except RPCError as error:
                failures += 1
                if POLL_ENDED not in error.message or failures > MAX_POLL_RETRIES:
                    raise
            await asyncio.sleep(self.retry_pause)

    async def event_to_json(self, event: HistoryEvent) -> dict[str, Any]:
        """Convert an event to an entry of `contracts.run.export.ExportedExecution`."""
        kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower()
        plain = {"id": event.event_id, "type": kind, "at": event.event_time.ToDatetime(UTC).isoformat()}
        if event.user_metadata.HasField("summary"):
            plain["summary"] = await self._payload_to_json(event.user_metadata.summary)
        attributes = event.WhichOneof("attributes")
        fields: Mapping[str, Any] = await self.to_json(getattr(event, attributes)) if attributes else {}
        return {**fields, **plain}

    async def to_json(self, value: Any) -> Any:
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
            return {str(key): await self.to_json(inner) for key, inner in value.items()}
        values = value if field.is_repeated else [value]
        if field.enum_type:
            plain: list[Any] = [_enum_name(field.enum_type, number) for number in values]
        else:
            plain = [await self.to_json(element) for element in values]
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
