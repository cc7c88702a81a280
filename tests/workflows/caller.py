"""A workflow of a program that has the typed shells, and not the plugin."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.stubs import AgentRun, CompletedEvent, StartEvent, StartPayload, run_workflow_id


@workflow.defn
class Caller:
    @workflow.run
    async def run(self, task_queue: str) -> str:
        start = StartEvent(type="agentic.start", payload=StartPayload(goal="tidy up"))
        run_id = run_workflow_id(f"of-{workflow.info().workflow_id}")
        end = await workflow.execute_child_workflow(AgentRun.run, start, id=run_id, task_queue=task_queue)
        return end.payload.outcome if isinstance(end, CompletedEvent) else end.payload.detail
