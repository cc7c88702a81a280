"""What a run in a worker's memory lets that worker's activities read: its transcript, which they need not ask for then.

Nothing of the run depends on it. A replay, and a worker without activities, have nobody to share with.
"""

from temporalio import workflow
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

from activities.model.transcript_cache import Transcripts
from decisions.run.transcript import Transcript

_SHARE = "perdure_share_transcript"


class Sharing(Interceptor):
    """For workers that have a cache of conversations."""

    def __init__(self, transcripts: Transcripts) -> None:
        self._transcripts = transcripts

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the name that the SDK gives it
    ) -> type[WorkflowInboundInterceptor] | None:
        input.unsafe_extern_functions[_SHARE] = self._transcripts.share
        return None


def share(transcript: Transcript) -> None:
    if take := workflow.extern_functions().get(_SHARE):
        take(workflow.info().run_id, transcript)
