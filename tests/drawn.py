"""What may happen to a run, at random: replies of models, what calls bring, and what people and tools send to it.

All of it is drawn from a `random.Random`, which a seed gives, or hypothesis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

from perdure.contracts.failures import ToolFault
from perdure.contracts.run.limits import Limits
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import Call, RunState, RunStatus
from perdure.contracts.run.turn import ModelTurn, Usage
from perdure.contracts.tool import Approval, Effect, ToolKind, ToolOutcome, ToolRoute, error_outcome
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.run.reply import CUT_OFF
from perdure.decisions.tools import routes
from tests.played import NOW, Played

GOAL = "see"
TIMEOUT = timedelta(seconds=30)


def _route(name: str, effect: Effect, **fields: Any) -> ToolRoute:
    return ToolRoute(name=name, effect=effect, **{"kind": ToolKind.native, "timeout": TIMEOUT, **fields})


OWN = (
    _route("look", Effect.read),
    _route("peek", Effect.read),
    _route("save", Effect.keyed),
    _route("charge", Effect.once),
    _route("vote", Effect.read, kind=ToolKind.signal),
    _route("post", Effect.once, kind=ToolKind.signal),
    _route("guarded", Effect.once, approval=Approval.always, approval_timeout=timedelta(hours=1)),
)
NAMES = tuple(route.name for route in OWN)
BRINGS = ("fine", "fine", "other", "nothing", "failed", "doubt", "huge")
HUGE = "x" * 70_000  # more than a result may have that stays in history
LONG = {"result": "x" * 600_000}  # more than one from outside may have


@dataclass(frozen=True)
class Said:
    """A reply; arguments that are a string are no valid JSON."""

    text: str = ""
    uses: tuple[tuple[str, dict[str, Any] | str], ...] = ()
    stop: str | None = None


def a_state(rng: Random, **fields: Any) -> RunState:
    limits = {
        "max_steps": rng.choice((1, 5, 20, 20)),
        "max_turns": rng.choice((2, 15, 100, 100)),
        "max_reframes": rng.choice((0, 2, 5)),
    }
    return running((*routes(), *OWN), **{**limits, **fields})


def running(tools: Sequence[ToolRoute], **fields: Any) -> RunState:
    """A run that has just begun; `fields` are of its state, or of its limits."""
    limits = Limits(max_steps=20, max_turns=100, max_reframes=2, turn_timeout=timedelta(seconds=120))
    limits = limits.evolve(**({name: fields.pop(name) for name in list(fields) if name in Limits.model_fields}))
    base: dict[str, Any] = {
        "run_id": "R1",
        "goal": GOAL,
        "agent": "default",
        "context": {},
        "conversation_id": None,
        "created_at": NOW,
        "updated_at": NOW,
        "limits": limits,
        "status": RunStatus.running,
        "tools": tuple(tools),
    }
    return RunState(**{**base, **fields})


def a_reply(rng: Random, before: Said | None = None) -> Said:
    """Like that of `before` now and then: models go in circles."""
    if before is not None and before.uses and rng.random() < 0.4:
        return before
    uses = tuple(_a_use(rng) for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 5))))
    text = rng.choice(("", "", "thought", "Frame: so.\nPlan: 1. look"))
    if not uses:
        stop = rng.choice((None, *("max_tokens", "pause_turn") * 3, "refusal"))
        return Said(rng.choice(("", text, text)), stop=stop)
    return Said(text, uses, rng.choice((None,) * 8 + ("max_tokens",)))


def some_reads(rng: Random) -> Said:
    """A reply that asks for reads alone."""
    names = rng.choices(("look", "peek"), k=rng.choice((1, 1, 2, 3)))
    return Said(uses=tuple((name, {"brings": rng.choice(BRINGS), "n": rng.randrange(9)}) for name in names))


def _a_use(rng: Random) -> tuple[str, dict[str, Any] | str]:
    if rng.random() < 0.75:
        return rng.choice(NAMES), {"brings": rng.choice(BRINGS), "n": rng.randrange(3)}
    return rng.choice(_ODD)


_ODD: tuple[tuple[str, dict[str, Any] | str], ...] = (
    ("finish", {"outcome": "done", "artifacts": ["a.md", 5]}),
    ("finish", {"outcome": " "}),
    ("finish", {"outcome": 5}),
    ("finish", "{"),
    ("escalate", {"reason": "stuck"}),
    ("escalate", {}),
    ("reframe", {"frame": "anew"}),
    ("reframe", {}),
    ("ask_human", {"question": "Which?", "options": ["a", 5]}),
    ("ask_human", {"question": ""}),
    ("ask_human", {}),
    ("get_run_journal", {}),
    ("append_run_journal_entry", {"section": "decisions", "text": "so"}),
    ("append_run_journal_entry", {"section": "nowhere"}),
    ("update_run_journal", {"section": "current_state", "text": "half"}),
    ("update_run_journal", {"objective": 5}),
    ("delegate", {"subtasks": []}),
    ("delegate", {"subtasks": [{"id": "a", "agent": "nobody", "goal": "x"}]}),
    ("workflow_create", {"definition": "x"}),
    ("workflow_task_create", {}),
    ("look", '{"brings": "fi'),
    ("charge", "[1]"),
    ("nothing", {}),
    ("Look", {}),
    ("lооk", {}),
    ("", {}),
)


def turn_of(said: Said, number: int, **fields: Any) -> ModelTurn:
    """As the model's activity brings it; `number` makes the ids of its tool uses.

    The last call of a reply that was cut off is not made, as it may lack its end.
    """
    content: list[dict[str, Any]] = [{"type": "text", "text": said.text}] if said.text else []
    uses = list(said.uses)
    if uses and said.stop in CUT_OFF:
        uses[-1] = (uses[-1][0], "cut off")
    named = [(f"t{number}-{place}", name, given) for place, (name, given) in enumerate(uses)]
    content += [
        {"type": "tool_use", "id": use, "name": name, "input": given if isinstance(given, dict) else {}}
        for use, name, given in named
    ]
    base = {"model": "scripted", "usage": Usage(input=1, output=1), "duration_ms": 0, "cost_usd": 0.0}
    return ModelTurn(
        content=content,
        stop_reason=said.stop or ("tool_use" if said.uses else "end_turn"),
        broken=tuple(use for use, _, given in named if isinstance(given, str)),
        **{**base, **fields},
    )


def brought(call: Call) -> ToolOutcome | None:
    """What a call of the tools above brings, as its arguments have it; None where that is in doubt."""
    match call.arguments.get("brings"):
        case "doubt" if call.effect is Effect.once and call.generation == 1:
            return None
        case "failed":
            return error_outcome(ToolFault.tool_error, "it broke")
        case "nothing":
            return ToolOutcome(result=None)
        case "huge":
            return ToolOutcome(result=HUGE)
        case other:
            return ToolOutcome(result=f"{other} {call.arguments.get('n')}")


Signal = tuple[str, tuple[Any, ...]]


def a_signal(rng: Random, run: Played) -> Signal:
    """Any of them; what the run waits for more often than what it does not."""
    kinds: list[Callable[[Random, Played], Signal]] = [_bad, _result, _answer, _steer]
    if run.state.question is not None:
        kinds += [_answer, fitting, fitting, fitting]
    if any(wait.kind == "outside" for wait in run.waits):
        kinds += [_result, _awaited, _awaited, _awaited]
    if rng.random() < 0.03:
        kinds = [_cancel]
    return rng.choice(kinds)(rng, run)


def fitting(rng: Random, run: Played) -> Signal:
    """An answer to the open question; where none is open, a result that is awaited."""
    question = rng.choice(run.state.open_questions or (None,))
    if question is None:
        return _awaited(rng, run)
    name = {"question_id": question.id}
    is_only = len(run.state.open_questions) == 1
    said: dict[str, Any] = rng.choice(({}, name, {"by": "Ann"})) if is_only else name
    decisions = [each for each in QUESTIONS[question.kind].decisions if each != "stop" or rng.random() < 0.3]
    if not decisions or (QUESTIONS[question.kind].takes_own_words and rng.random() < 0.5):
        return "human_input", ({**said, "text": "go left"},)
    if question.kind is QuestionKind.approval and rng.random() < 0.5:
        said = {**said, "call": question.call}
    return "human_input", ({**said, "decision": rng.choice(decisions), "text": "so it was"},)


def _answer(rng: Random, run: Played) -> Signal:
    """One that does not fit, more often than not."""
    named: dict[str, Any] = rng.choice(({}, {"question_id": "q1"}, {"question_id": "q99"}, {"call": "another"}))
    said: dict[str, Any] = rng.choice(
        ({}, {"text": ""}, {"text": "yes"}, *({"decision": each} for each in ("approve", "deny", "stop", "run_again")))
    )
    return "human_input", ({**named, **said},)


def _awaited(rng: Random, run: Played) -> Signal:
    """The result of a step that is awaited, or one that is too large, or an error."""
    waits = [wait for wait in run.waits if wait.kind == "outside" and wait.call is not None]
    if not waits:
        return _result(rng, run)
    call = rng.choice(waits).call
    assert call is not None
    fields: dict[str, Any] = rng.choice(
        (
            {"status": "ok", "result": "voted"},
            {"status": "ok", "result": {"votes": [1, None]}},
            {"status": "ok", **LONG},
            {"status": "error"},
            {"status": "error", "error": {"kind": "tool_error", "message": "no", "retryable": rng.random() < 0.5}},
        )
    )
    return "tool_result", (_event(run, call.step, call.tool, **fields),)


def _result(rng: Random, run: Played) -> Signal:
    """One of any step, by any tool, for any run: it breaks the protocol now and then, and ends the run."""
    issued = [pending.step for pending in run.state.pending] or [1]
    step = rng.choice(issued) if rng.random() < 0.96 else rng.choice((run.state.step, 0, 99))
    known = [made.tool for made in run.state.pending if made.step == step]
    tool = known[0] if known and rng.random() < 0.95 else rng.choice(NAMES)
    fields = {"run_id": "another"} if rng.random() < 0.3 else {}
    return "tool_result", (_event(run, step, tool, status="ok", result="late", **fields),)


def _event(run: Played, step: int | None, tool: str, **fields: Any) -> dict[str, Any]:
    payload = {"run_id": run.state.run_id, "step": step, "tool": tool, "completed_at": NOW.isoformat(), **fields}
    return {"type": "agentic.tool_result", "payload": payload}


def _steer(rng: Random, run: Played) -> Signal:
    return "steer", (rng.choice(({"request_id": "s", "text": "and hurry"}, {"text": "no id"}, {})),)


def _cancel(rng: Random, run: Played) -> Signal:
    return "cancel", rng.choice(((), ({},), ({"reason": "enough", "by": "Ann"},)))


def _bad(rng: Random, run: Played) -> Signal:
    bodies: tuple[tuple[Any, ...], ...] = ((), ({}, {}), (None,), (5,), ("text",), ([],), ({"no": "such"},))
    name, body = rng.choice(("tool_result", "human_input", "steer", "no_such_signal")), rng.choice(bodies)
    return name, body
