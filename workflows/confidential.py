"""Whether the payloads of a run are encrypted. Its workflow cannot see that; the worker, which knows, tells it.

Search attributes are never encrypted, so words do not go there then.
"""

from temporalio import workflow
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

_TOLD = "perdure_is_confidential"


class Confidential(Interceptor):
    """For workers that have a codec."""

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the name that the SDK gives it
    ) -> type[WorkflowInboundInterceptor] | None:
        input.unsafe_extern_functions[_TOLD] = bool
        return None


def is_confidential() -> bool:
    return _TOLD in workflow.extern_functions()
