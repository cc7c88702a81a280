"""Signed events as the start of work: their kind, their identity, and the place for an answer.

An event by a bot or an app begins nothing: an answer would begin the next one.
"""

import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from contracts.followup import Outbound
from contracts.people.inbound import InboundEvent, InboundRequest
from contracts.sender import Sender
from decisions.ids import inbound_workflow_id
from decisions.people.start_rule import StartRule, UnusableEventError
from gateway.signatures import GITHUB_WINDOW, HUMAN_SUBTYPES, WINDOW, Headers, parse_time

_EventReader = Callable[[Headers, dict[str, Any], bytes], InboundEvent | None]


def read_inbound(scheme: str, headers: Headers, value: Any, body: bytes) -> InboundEvent | None:
    """Return the event of a checked body, or None if it is not by a person, too old, or of no known form."""
    try:
        return _READERS[scheme](headers, value, body)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


async def start_inbound(
    client: Client, task_queue: str, rules: Iterable[StartRule], webhook: str, event: InboundEvent
) -> list[str]:
    """Start a workflow for each start that the event is for; a repeat starts none. Return the ids. Raises RPCError."""
    started = []
    for rule in rules:
        if rule.webhook != webhook or not rule.takes(event):
            continue
        request = InboundRequest(start=rule.name, event=event, sender=Sender(door=f"webhook:{webhook}"))
        workflow_id = inbound_workflow_id(rule.name, _identify(rule, event))
        started.append(workflow_id)
        try:
            await client.start_workflow(
                "Inbound",
                request,
                id=workflow_id,
                task_queue=task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"{webhook}: {event.kind}",
            )
        except WorkflowAlreadyStartedError:
            continue
    return started


def _identify(rule: StartRule, event: InboundEvent) -> str:
    """Return the event's identity for the start; its workflow reports an identity that cannot be evaluated."""
    try:
        return rule.identify(event)
    except UnusableEventError:
        return event.id


def _read_slack(_headers: Headers, value: dict[str, Any], _body: bytes) -> InboundEvent | None:
    event = value["event"] if value["type"] == "event_callback" else {}
    if event.get("subtype") not in HUMAN_SUBTYPES or event.get("bot_id") is not None or "user" not in event:
        return None
    thread = event.get("thread_ts") or event.get("ts")
    place = Outbound(channel_id=event["channel"], platform="slack", text="…", reply_to=thread)
    return InboundEvent(id=value["event_id"], kind=event["type"], body=value, user=event["user"], reply_to=place)


def _read_github(headers: Headers, value: dict[str, Any], body: bytes) -> InboundEvent | None:
    person, item = value["sender"], value.get("comment") or value.get("issue") or value["pull_request"]
    if person.get("type") == "Bot" or item.get("performed_via_github_app") is not None:
        return None
    if not -WINDOW <= time.time() - parse_time(item["updated_at"]) <= GITHUB_WINDOW:
        return None
    number = (value.get("issue") or value["pull_request"])["number"]
    place = Outbound(channel_id=value["repository"]["full_name"], platform="github", text="…", reply_to=str(number))
    kind = f"{headers['x-github-event']}.{value['action']}"
    return InboundEvent(id=sha256(body).hexdigest(), kind=kind, body=value, user=person["login"], reply_to=place)


def _read_standard(headers: Headers, value: dict[str, Any], _body: bytes) -> InboundEvent | None:
    return InboundEvent(id=headers["webhook-id"], kind=value["type"], body=value)


_READERS: dict[str, _EventReader] = {"standard": _read_standard, "slack": _read_slack, "github": _read_github}
