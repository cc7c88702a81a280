"""A scripted tool that records its calls."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from perdure.activities.tools.interface import CallContext
from perdure.contracts.agent import ToolSchema
from perdure.contracts.tool import Approval, Effect, QueueRoute, ToolKind, ToolOutcome, ToolRoute

Behaviour = Callable[[dict[str, Any], CallContext], Any]


class ScriptedTool:
    """A tool with a `behaviour` that returns a ToolOutcome or JSON value (or an awaitable of one), or raises."""

    def __init__(
        self,
        name: str,
        behaviour: Behaviour = lambda arguments, _: f"ok {arguments}",
        *,
        effect: Effect = Effect.read,
        kind: ToolKind = ToolKind.native,
        approval: Approval = Approval.never,
        timeout: timedelta = timedelta(seconds=30),
        approval_timeout: timedelta | None = None,
        queue: QueueRoute | None = None,
    ) -> None:
        self.route = ToolRoute(
            name=name,
            kind=kind,
            effect=effect,
            approval=approval,
            timeout=timeout,
            approval_timeout=approval_timeout,
            queue=queue,
        )
        self.schema = ToolSchema(name=name, description=f"The tool {name}.", input_schema={"type": "object"})
        self.calls: list[tuple[dict[str, Any], CallContext]] = []
        self._behaviour = behaviour

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        self.calls.append((arguments, context))
        result = self._behaviour(arguments, context)
        if isinstance(result, Awaitable):
            result = await asyncio.ensure_future(result)
        return result if isinstance(result, ToolOutcome) else ToolOutcome(result=result)
