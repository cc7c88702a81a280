"""The sandbox in which workflows run: the SDK's, except that it is not entered to ask for a payload's context.

For each payload the SDK enters the sandbox three or four times to learn the command that it belongs to, which a
converter or codec may use. Ours treat all payloads of a workflow alike, and those entries took a sixth of a worker's
CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from temporalio.converter import SerializationContext, StorageDriverStoreContext, WorkflowSerializationContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info


@dataclass(frozen=True)
class Sandbox(SandboxedWorkflowRunner):
    """With `stores`, large payloads are stored outside Temporal, under the name of their command.

    `confirm` is called in the thread of a workflow before its first task here. If it raises, the task fails, and
    another worker gets it.
    """

    stores: bool = True
    confirm: Callable[[], None] | None = None

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(super().create_instance(det), self.stores, self.confirm)


class _Instance(WorkflowInstance):
    def __init__(self, within: WorkflowInstance, stores: bool, confirm: Callable[[], None] | None) -> None:
        info = within.get_info()
        self._within = within
        self._context = WorkflowSerializationContext(namespace=info.namespace, workflow_id=info.workflow_id)
        self._stores = stores
        self._confirm = confirm

    def activate(self, act: Any) -> Any:
        if self._confirm is not None:
            self._confirm()
            self._confirm = None
        return self._within.activate(act)

    def get_serialization_context(self, command_info: Any) -> SerializationContext | None:  # noqa: ARG002 - the SDK's
        return self._context

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        return self._within.get_external_store_context(command_info) if self._stores else StorageDriverStoreContext()

    def get_info(self) -> Info:
        return self._within.get_info()

    def get_thread_id(self) -> int | None:
        return self._within.get_thread_id()
