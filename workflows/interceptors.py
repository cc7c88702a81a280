"""Facts that a worker gives its workflows: its transcript cache, its heartbeat timeout, and facts about the namespace.

A workflow sees its payloads decrypted, but search attributes are never encrypted: an encrypted run puts no texts there.
No run depends on the cache; a replay, and a worker without activities, share nothing.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from perdure.decisions.run.transcript import Transcript
from perdure.workflows.execution import HEARTBEAT

_CONFIDENTIAL, _SHARE, _HEARTBEAT = "perdure_is_confidential", "perdure_share_transcript", "perdure_heartbeat"
_UNSEARCHABLE = "perdure_is_unsearchable"


class _ExternInterceptor(Interceptor):
    """Gives the workflows of a worker a function that runs outside the sandbox."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self._function = name, function

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the name that the SDK gives it
    ) -> type[WorkflowInboundInterceptor] | None:
        input.unsafe_extern_functions[self._name] = self._function
        return None


def confidential_interceptor() -> Interceptor:
    """Mark the runs of a worker with a codec as encrypted."""
    return _ExternInterceptor(_CONFIDENTIAL, bool)


def unsearchable_interceptor() -> Interceptor:
    """Mark the namespace of a worker as one without Perdure's search attributes."""
    return _ExternInterceptor(_UNSEARCHABLE, bool)


def sharing_interceptor(take: Callable[[str, Transcript], None]) -> Interceptor:
    """Give the transcripts of a worker's runs to its activities, which then need not query them."""
    return _ExternInterceptor(_SHARE, take)


class HeartbeatInterceptor(_ExternInterceptor):
    """Schedule activities with a worker's own heartbeat timeout.

    A replay compares the order, ids and types of activities, not their timeouts: a recorded run accepts any value.
    """

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(_HEARTBEAT, lambda: timeout)

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the name that the SDK gives it
    ) -> type[WorkflowInboundInterceptor]:
        super().workflow_interceptor_class(input)
        return _HeartbeatInbound


class _HeartbeatInbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_HeartbeatOutbound(outbound))


class _HeartbeatOutbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002 - the SDK's
        if input.heartbeat_timeout is HEARTBEAT:  # a queue tool has its own, which may have the same value
            input.heartbeat_timeout = workflow.extern_functions()[_HEARTBEAT]()
        return super().start_activity(input)


def is_confidential() -> bool:
    """Return whether the payloads of this run are encrypted."""
    return _CONFIDENTIAL in workflow.extern_functions()


def is_unsearchable() -> bool:
    """Return whether this worker's namespace lacks the search attributes. Workers may differ: record the decision."""
    return _UNSEARCHABLE in workflow.extern_functions()


def share_transcript(transcript: Transcript) -> None:
    if take := workflow.extern_functions().get(_SHARE):
        take(workflow.info().run_id, transcript)
