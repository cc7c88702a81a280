"""An example of each thing that goes in or comes out. The tests hold each against its contract."""

from typing import Any

from pydantic import BaseModel

from perdure.contracts.conversation import DropRequest, SubmitRequest, Submitted
from perdure.contracts.run.events import (
    CompletedEvent,
    EscalatedEvent,
    ResumeEvent,
    StartEvent,
    ToolRequestEvent,
    ToolResultEvent,
)
from perdure.contracts.run.signals import CancelRequest, HumanInput
from perdure.features.follow_ups.contract import (
    CancelCommand,
    CreateCommand,
    Event,
    LifecycleEvent,
    Outbound,
    TaskCommand,
    TaskResolved,
)
from perdure.features.mailbox.contract import ReplyHead, TaskHead

REPLY = {
    "type": "evt.adapter.message.created",
    "id": "evt-81",
    "data": {
        "platform": "discord",
        "channelId": "c-1",
        "messageId": "m-2",
        "userId": "u-7",
        "userName": "Ada",
        "text": "Tuesday suits me",
        "ts": 1795000000000,
        "raw": {"discord": {"replyToMessageId": "m-1"}},
    },
}

EXAMPLES: dict[type[BaseModel], Any] = {
    StartEvent: {
        "type": "agentic.start",
        "payload": {
            "goal": "find out where order A-1001 is",
            "agent": "clerk",
            "context": {"customer": "Ada"},
            "limits": {"max_steps": 8, "budget_usd": 0.5},
        },
        "dedupe_key": "agentic:start:order-A-1001",
    },
    ResumeEvent: {"type": "agentic.resume", "payload": {"run_id": "r1", "step": 3, "say": "without the second source"}},
    CompletedEvent: {
        "type": "agent.completed",
        "payload": {
            "run_id": "r1",
            "goal": "find out where order A-1001 is",
            "outcome": "It left the warehouse on Monday.",
            "steps_taken": 2,
            "artifacts": ["artifacts/report.md"],
        },
    },
    EscalatedEvent: {
        "type": "agent.escalated",
        "payload": {
            "run_id": "r1",
            "goal": "find out where order A-1001 is",
            "reason": "step_budget",
            "detail": "all 8 steps are used up, and the agent asked for one more",
            "steps_taken": 8,
            "artifacts": [],
            "handoff": "The carrier has no record of it; ask the warehouse.",
        },
    },
    HumanInput: {"question_id": "q1", "decision": "deny", "text": "too dear", "by": "Ada"},
    CancelRequest: {"reason": "not needed", "by": "Ada"},
    ToolRequestEvent: {
        "type": "agentic.tool_request.charge",
        "payload": {
            "run_id": "r1",
            "step": 2,
            "tool": "charge",
            "tool_command": "handle",
            "tool_payload": {"amount": 12.5},
            "requested_at": "2026-11-22T10:00:00Z",
        },
        "dedupe_key": "agentic:run:r1:step:2:request",
    },
    ToolResultEvent: {
        "type": "agentic.tool_result",
        "payload": {
            "run_id": "r1",
            "step": 2,
            "tool": "charge",
            "status": "error",
            "error": {"kind": "declined", "message": "the card has expired", "retryable": False},
        },
    },
    SubmitRequest: {"request_id": "m-17", "goal": "where is order A-1001?", "agent": "clerk", "when_busy": "steer"},
    Submitted: {"run_id": "c-1f0c6e2ad54b8f0a9d37", "position": 1, "duplicate": False},
    DropRequest: {"request_id": "m-17", "by": "Ada"},
    Event: REPLY,
    CreateCommand: {
        "type": "cmd.workflow.create",
        "headers": {"session_id": "orders"},
        "data": {
            "workflowId": "order-A-1001",
            "definition": {
                "origin": {"session_id": "orders", "user_id": "u-7"},
                "resumeTarget": {"session_id": "orders"},
                "summary": "Ada was asked when the parcel may come.",
                "completion": "all",
            },
        },
    },
    TaskCommand: {
        "type": "cmd.workflow.task.create",
        "data": {
            "workflowId": "order-A-1001",
            "taskId": "ada",
            "kind": "discord.wait_for_reply",
            "description": "Ada says when the parcel may come",
            "input": {"channelId": "c-1", "messageId": "m-1", "fromUserId": "u-7"},
        },
    },
    TaskResolved: {"taskId": "ada", "result": {"text": "Tuesday suits me"}, "resolvedBy": "Ada, by telephone"},
    CancelCommand: {"type": "cmd.workflow.cancel", "data": {"reason": "delivered already"}},
    LifecycleEvent: {
        "type": "evt.workflow.task.resolved",
        "headers": {"session_id": "orders", "user_id": "u-7"},
        "data": {"workflowId": "order-A-1001", "taskId": "ada"},
    },
    Outbound: {"channelId": "c-1", "text": "Your parcel left today.", "platform": "discord"},
    TaskHead: {
        "type": "task",
        "message_id": "m-1",
        "plan_id": "spring",
        "task_id": "poem",
        "from": "editor",
        "inputs": [{"name": "notes", "match": "*.txt"}],
        "pick_policy": "latest",
    },
    ReplyHead: {
        "type": "reply",
        "status": "done",
        "message_id": "m-1-reply",
        "plan_id": "spring",
        "task_id": "poem",
        "from": "scribe",
        "in_reply_to": "m-1",
    },
}
