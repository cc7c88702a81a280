"""The core's activities as workflows call them: their names, requests and results. `perdure.activities` has the code.

So a workflow loads no client, provider or store. `tests/test_activity_signatures.py` compares the two.
"""

from typing import Protocol

from temporalio import activity

from perdure.contracts.agent import StartSnapshot, StartSnapshotRequest
from perdure.contracts.conversation import Ended, Joined, JoinRequest, Queued, TurnAnswer
from perdure.contracts.media import Attached, AttachRequest
from perdure.contracts.policy import PolicyCheckRequest, PolicyFound, PolicyLookup
from perdure.contracts.run.state import Closed, CloseRequest, Inherited, InheritRequest
from perdure.contracts.run.turn import (
    Acceptance,
    AcceptRequest,
    ContextFull,
    FusedTurn,
    FusedTurnRequest,
    ModelTurn,
    PolicyVerdicts,
    Summary,
    SummaryRequest,
    TurnRequest,
)
from perdure.contracts.tool import ChangeCheck, ChangedCall, LargeResult, ToolCall, ToolOutcome


class Activities(Protocol):
    """A run's beginning and end, its model turns and calls, and what a lane asks of its turns."""

    @activity.defn
    async def open_run(self, request: StartSnapshotRequest) -> StartSnapshot: ...
    @activity.defn
    async def inherit(self, request: InheritRequest) -> Inherited: ...
    @activity.defn
    async def join_conversation(self, request: JoinRequest) -> Joined: ...
    @activity.defn
    async def take_attachments(self, request: AttachRequest) -> Attached: ...
    @activity.defn
    async def close_segment(self, request: CloseRequest) -> Closed: ...

    @activity.defn
    async def plan(self, request: TurnRequest) -> ModelTurn | ContextFull: ...
    @activity.defn
    async def reflect(self, request: TurnRequest) -> ModelTurn | ContextFull: ...
    @activity.defn
    async def read_and_reflect(self, request: FusedTurnRequest) -> FusedTurn: ...
    @activity.defn
    async def summarize(self, request: SummaryRequest) -> Summary: ...
    @activity.defn
    async def accept_outcome(self, request: AcceptRequest) -> Acceptance: ...

    @activity.defn
    async def check_policy(self, request: PolicyCheckRequest) -> PolicyVerdicts: ...
    @activity.defn
    async def find_policy(self, request: PolicyLookup) -> PolicyFound: ...
    @activity.defn
    async def call_tool(self, call: ToolCall) -> ToolOutcome: ...
    @activity.defn
    async def check_change(self, call: ChangedCall) -> ChangeCheck: ...
    @activity.defn
    async def check_task(self, call: ToolCall) -> ToolOutcome: ...
    @activity.defn
    async def update_task(self, call: ToolCall) -> None: ...
    @activity.defn
    async def cancel_task(self, call: ToolCall) -> ToolOutcome: ...
    @activity.defn
    async def keep_result(self, large: LargeResult) -> ToolOutcome: ...

    @activity.defn
    async def open_turn(self, conversation_id: str) -> Queued | None: ...
    @activity.defn
    async def answer_turn(self, request: TurnAnswer) -> bool: ...
    @activity.defn
    async def watch_run(self, workflow_id: str, is_ending: bool = False) -> Ended: ...
    @activity.defn
    async def is_held(self, run_id: str) -> bool: ...
