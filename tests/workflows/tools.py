"""Tools of which a test decides when they go on."""

import asyncio
from typing import Any

from perdure.contracts.tool import Effect
from perdure.testkit.tools import ScriptedTool


class HeldTool:
    """A tool whose calls stay in flight until the test sets `go_on`. `cut` counts the calls that were cancelled."""

    def __init__(self, name: str = "work", effect: Effect = Effect.once, result: str = "worked", **route: Any) -> None:
        self.started, self.go_on = asyncio.Event(), asyncio.Event()
        self.cut = 0
        self.tool = ScriptedTool(name, self._hold, effect=effect, **route)
        self._result = result

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [arguments for arguments, _ in self.tool.calls]

    @property
    def keys(self) -> list[str]:
        return [context.idempotency_key for _, context in self.tool.calls]

    async def _hold(self, arguments: Any, context: Any) -> str:
        self.started.set()
        try:
            await asyncio.wait_for(self.go_on.wait(), 60)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return self._result


def returning(name: str, template: str, **route: Any) -> ScriptedTool:
    """A tool whose result is the template with its arguments."""
    return ScriptedTool(name, lambda arguments, _: template.format(**arguments), **route)
