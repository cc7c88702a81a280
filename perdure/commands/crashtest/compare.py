"""The facts of a play, and the comparison of a killed play with the whole one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from contracts.models import FrozenModel, JsonResult, omit_no_result
from contracts.tool import Effect
from decisions.text.formatting import truncate
from perdure.commands.crashtest.kills import Event, KillPoint

MAX_SHOWN = 160  # characters of a text in a finding
MAX_PAID = 2  # requests of one turn: a kill loses one reply at most


class PlayTool(FrozenModel):
    """A tool that a play called, with the number of attempts of the call."""

    tool: str
    effect: Effect
    scheduled: int  # the event
    attempts: int = 1


class PlayFacts(FrozenModel):
    """The facts that are compared between plays.

    `requests` counts the model's requests by turn, `doubts` are the calls that a person was asked about, and `error` is
    the reason why a play has no end.
    """

    status: str = ""
    text: str = ""
    result: JsonResult = omit_no_result()
    artifacts: dict[str, str] = Field(default_factory=dict)
    requests: dict[str, int] = Field(default_factory=dict)
    check: str | None = None
    doubts: tuple[str, ...] = ()
    tools: tuple[PlayTool, ...] = ()
    was_killed: bool = True
    error: str | None = None


class PlayVerdict(FrozenModel):
    """The verdict on one play: `same`, `asked` (a person was asked about a call), or the `findings`."""

    point: KillPoint
    findings: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def word(self) -> str:
        return "DIFFERS" if self.findings else "asked" if self.asked else "same"


def tools_in(events: Sequence[Event]) -> tuple[PlayTool, ...]:
    """Return the tool calls of a history that are activities, with their attempts."""
    started = {event["scheduled_event_id"]: event for event in events if event["type"] == "activity_task_started"}
    return tuple(
        PlayTool(
            tool=call["tool"],
            effect=call.get("effect", Effect.read),
            scheduled=event["id"],
            attempts=started.get(event["id"], {}).get("attempt", 1),
        )
        for event in events
        if event["type"] == "activity_task_scheduled"
        for call in _calls_of(event)
    )


def _calls_of(event: Event) -> Iterable[Event]:
    request = next(iter(event.get("input") or ()), None)
    if not isinstance(request, Mapping):
        return ()
    match event["activity_type"]["name"]:
        case "call_tool":
            return (request,)
        case "read_and_reflect":
            return tuple(request["reads"])
        case _:
            return ()


def find_differences(whole: PlayFacts, play: PlayFacts) -> tuple[str, ...]:
    """Return what differs in a killed play, with the declaration that explains it, if one does."""
    if play.error:
        return (play.error,)
    if not play.was_killed:
        return ("the play did not come to this moment: it took another way before the kill",)
    return tuple(_differences(whole, play))


def _differences(whole: PlayFacts, play: PlayFacts) -> Iterator[str]:
    for name in ("status", "text", "result"):
        if getattr(play, name) != getattr(whole, name):
            yield f"{name}: {_show(getattr(play, name))} and not {_show(getattr(whole, name))}"
    for path in sorted({*whole.artifacts, *play.artifacts}):
        if whole.artifacts.get(path) != play.artifacts.get(path):
            missing = "missing" if path not in play.artifacts else "unexpected" if path not in whole.artifacts else ""
            yield f"artifact {path}: {missing or 'other content'}"
    if set(play.requests) != set(whole.requests):
        yield f"model: {len(play.requests)} turns and not {len(whole.requests)}"
    for turn, count in play.requests.items():
        if count >= MAX_PAID + whole.requests.get(turn, 1):
            yield f"model: {turn} was requested {count} times"
    if play.check != whole.check:
        yield f"check: {_show(play.check)} and not {_show(whole.check)}{_blame(play)}"


def _blame(play: PlayFacts) -> str:
    """Return the declaration that is wrong, as the calls of the play suggest."""
    repeated = [tool for tool in play.tools if tool.attempts > 1 and tool.effect is not Effect.once]
    if repeated:
        tool = repeated[-1]
        if tool.effect is Effect.read:
            return f"; {tool.tool} is declared read, was repeated, and changed something: declare it keyed or once"
        return f"; {tool.tool} is declared keyed, was repeated, and does not honour its key: declare it once"
    once = list(dict.fromkeys(tool.tool for tool in play.tools if tool.effect is Effect.once))
    if once and not play.doubts:
        return f"; {', '.join(once)}: declared once, and answered before it was done: answer after the change"
    return ""


def _show(value: Any) -> str:
    return repr(truncate(value if isinstance(value, str) else str(value), MAX_SHOWN))
