"""The transcript of a run in a worker's memory, shared with that worker's activities, which then need not query it.

No run depends on it: a replay, and a worker without activities, share nothing.
"""

from temporalio import workflow
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

from activities.model.transcript_cache import TranscriptCache
from decisions.run.transcript import Transcript

_SHARE = "perdure_share_transcript"


class SharingInterceptor(Interceptor):
    """Gives the runs of a worker access to its transcript cache."""

    def __init__(self, transcripts: TranscriptCache) -> None:
        self._transcripts = transcripts

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the name that the SDK gives it
    ) -> type[WorkflowInboundInterceptor] | None:
        input.unsafe_extern_functions[_SHARE] = self._transcripts.share_live
        return None


def share_transcript(transcript: Transcript) -> None:
    if take := workflow.extern_functions().get(_SHARE):
        take(workflow.info().run_id, transcript)
