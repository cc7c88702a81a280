"""What `plan`, `reflect` and `summarize` want of a model. Who answers is given in, and is none of their business."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from contracts.agent import Definition
from contracts.run.turn import PassedOver, Usage


@dataclass(frozen=True)
class ModelCall:
    """`on_text` is told the text so far, each time there is more of it.

    `on_held` is told why it must wait, and "" when it need not any longer; `caller` tells those apart that wait.
    `digest` is the journal's, `brief` what this turn is told beside the system prompt. The reply must call `force`, if
    that is set; with `is_closing` it may call no tool. The server may be silent for `patience` seconds, and the reply
    may take `limit` seconds in all; None: no limit.
    """

    definition: Definition
    messages: list[dict[str, Any]]
    digest: str = ""
    brief: str = ""
    force: str | None = None
    is_closing: bool = False
    on_text: Callable[[str], object] = lambda _: None
    on_held: Callable[[str], object] = lambda _: None
    caller: str = ""
    patience: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class ModelReply:
    """`broken` names the tool uses whose arguments were not valid JSON, `repeated` those that came with the
    id of an earlier one.

    `asked` is who has answered, by the name that the project has for it; "" is the definition's own model. `waited` is
    how many seconds the call was held back before it was made.
    """

    content: list[dict[str, Any]]
    stop_reason: str | None
    model: str
    usage: Usage
    broken: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    asked: str = ""
    waited: float = 0.0
    passed_over: tuple[PassedOver, ...] = ()


class Model(Protocol):
    """Whoever answers. `call.on_text` is told the text so far, each time there is more of it."""

    async def reply(self, call: ModelCall) -> ModelReply: ...
