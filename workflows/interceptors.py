"""Facts that a worker gives its workflows across the sandbox: its transcript cache, and whether payloads are encrypted.

A workflow sees its payloads decrypted, but search attributes are never encrypted: an encrypted run puts no texts there.
No run depends on the cache; a replay, and a worker without activities, share nothing.
"""

from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

from activities.model.transcript_cache import TranscriptCache
from decisions.run.transcript import Transcript

_CONFIDENTIAL, _SHARE = "perdure_is_confidential", "perdure_share_transcript"


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


def sharing_interceptor(transcripts: TranscriptCache) -> Interceptor:
    """Share the transcripts of a worker's runs with its activities, which then need not query them."""
    return _ExternInterceptor(_SHARE, transcripts.share_live)


def is_confidential() -> bool:
    """Return whether the payloads of this run are encrypted."""
    return _CONFIDENTIAL in workflow.extern_functions()


def share_transcript(transcript: Transcript) -> None:
    if take := workflow.extern_functions().get(_SHARE):
        take(workflow.info().run_id, transcript)
