"""Made-up runs, as events of the real classes: what the page is given cannot differ in form from a gateway's."""

import json
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from perdure.client.run_events import (
    ActivityRetrying,
    AnswerReceived,
    ContinuedAsNew,
    ModelCallStarted,
    ModelReplied,
    QuestionClosed,
    RunEnded,
    RunEvent,
    RunStarted,
    TimedEvent,
    ToolCallFinished,
    ToolCallRefused,
    ToolCallStarted,
    WaitEnded,
    WaitStarted,
    event_to_json,
)
from perdure.client.watch import EventPosition
from perdure.contracts.people import Sender
from perdure.contracts.policy import PolicyVerdict, Verdict
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import QuestionView, RunStatus, TermsView
from perdure.contracts.run.turn import ModelTurn, Usage
from perdure.contracts.tool import Effect, ToolCall, ToolError, ToolOutcome, error_outcome
from perdure.decisions.ids import json_digest
from perdure.decisions.text.formatting import call_line, format_approval

MODEL = "claude-sonnet-5"
POLICY = "5f1d0c6a6f0e4bb7"
EXECUTION = str(UUID(int=0x5EED))
APPROVALS = tuple(Decision(value) for value in ("approve", "approve_tool", "deny"))

Call = tuple[str, dict[str, Any]]


class Course:
    """A run that is written down event by event; `now` is the time of the next one."""

    def __init__(self, goal: str, began: datetime) -> None:
        self.now = began
        self.events: list[RunEvent] = []
        self.open: list[QuestionView] = []
        self.turns = self.steps = self.asked = 0
        self.add(RunStarted(goal))

    def add(self, event: Any) -> None:
        assert isinstance(event, TimedEvent)
        object.__setattr__(event, "at", self.now)  # frozen for readers
        self.events.append(event)  # type: ignore[arg-type]  # a feature's, too

    def wait(self, **units: float) -> None:
        """Let time pass, in the units of `timedelta`."""
        self.now += timedelta(**units)

    def think(
        self,
        seconds: float,
        text: str,
        *calls: Call,
        thinking: str = "",
        rule: str = "",
        verdict: Verdict = Verdict.ask,
    ) -> list[ToolCall]:
        """A turn of the model. Returns its calls, not yet made; on them the policy's `rule` has this verdict."""
        self.turns += 1
        phase = "plan" if self.turns == 1 else "reflect"
        self.add(ModelCallStarted(phase, self.turns))
        self.wait(seconds=seconds)
        made = [self._call(at, *call) for at, call in enumerate(calls)]
        uses = [{"type": "tool_use", "id": c.tool_use_id, "name": c.tool, "input": c.arguments} for c in made]
        judged = PolicyVerdict(verdict=verdict if rule else Verdict.allow, rule=rule or "reads", policy=POLICY)
        self.add(
            ModelReplied(
                phase,
                self.turns,
                ModelTurn(
                    content=[
                        *([{"type": "thinking", "thinking": thinking, "signature": ""}] if thinking else []),
                        *([{"type": "text", "text": text}] if text else []),
                        *uses,
                    ],
                    stop_reason="tool_use" if uses else "end_turn",
                    model=MODEL,
                    usage=Usage(input=412, output=20 + len(text) // 3, cache_read=900 * self.turns % 90_000),
                    duration_ms=int(1000 * seconds),
                    cost_usd=0.004 + 0.0001 * (self.turns % 50),
                    verdicts={use["id"]: judged for use in uses},
                ),
            )
        )
        return made

    def _call(self, at: int, tool: str, arguments: dict[str, Any]) -> ToolCall:
        step = self.steps + 1 + at
        return ToolCall(step=step, tool=tool, tool_use_id=f"toolu_{self.turns}_{at}", arguments=arguments)

    def make(self, call: ToolCall, ms: float, result: Any = "ok", effect: Effect = Effect.read) -> None:
        self.begin(call, effect)
        self.wait(milliseconds=ms)
        self.finish(call, result)

    def begin(self, call: ToolCall, effect: Effect = Effect.read) -> None:
        self.steps = max(self.steps, call.step)
        self.add(ToolCallStarted(call.evolve(effect=effect)))

    def finish(self, call: ToolCall, result: Any) -> None:
        """`result` may be an outcome, such as an error."""
        outcome = result if isinstance(result, ToolOutcome) else ToolOutcome(result=result)
        self.add(ToolCallFinished(call, outcome))

    def make_together(self, calls: Sequence[ToolCall], lengths: Sequence[float], result: Any = "ok") -> None:
        """Calls that begin together; `lengths` in milliseconds, rising."""
        for call in sorted(calls, key=lambda call: call.step):
            self.begin(call)
        before = 0.0
        for call, length in zip(calls, lengths, strict=True):
            self.wait(milliseconds=length - before)
            self.finish(call, result)
            before = length

    def retry(self, activity: str, attempt: int, error: str) -> None:
        self.add(ActivityRetrying(activity, attempt, error))

    def refuse(self, call: ToolCall, message: str) -> None:
        self.steps = max(self.steps, call.step)
        line = call_line(call.tool, call.arguments or {})
        error = ToolError(kind="denied", message=message)
        self.add(ToolCallRefused(call.tool, call.tool_use_id, call.step, line, error))

    def ask_about(self, call: ToolCall, reason: str, *, rule: str = "money", groups: tuple[str, ...] = ()) -> None:
        """Wait for the approval of a call."""
        arguments = call.arguments or {}
        verdict = PolicyVerdict(verdict=Verdict.ask, rule=rule, policy=POLICY, reason=reason)
        self.ask(
            QuestionView(
                id=f"q{self.asked + 1}",
                kind="approval",
                text=format_approval(call.tool, arguments, verdict),
                options=APPROVALS,
                step=call.step,
                tool=call.tool,
                tool_use_id=call.tool_use_id,
                call=json_digest(arguments)[:24],
                arguments=arguments,
                terms=(TermsView(approvers=groups),) if groups else (),
                asked_at=self.now,
            )
        )

    def ask(self, question: QuestionView) -> None:
        self.asked += 1
        self.open.append(question)
        short = f"human: approve {question.tool}" if question.tool else f"human: asks: {question.text}"
        self.add(WaitStarted(RunStatus.waiting_on_human, short, tuple(self.open)))

    def answer(self, by: str, decision: Decision | None = Decision.approve, text: str | None = None) -> None:
        """Answer the question that is open longest."""
        question = self.open.pop(0)
        sender = Sender(door="gateway", token=by)
        answered = HumanInput(
            question_id=question.id, call=question.call, decision=decision, text=text, by=by, sender=sender
        )
        self.add(AnswerReceived(answered))
        self.add(QuestionClosed(question, "answered", self.now))
        if not self.open:
            self.add(WaitEnded())

    def frames(self) -> Iterator[bytes]:
        """The events as the gateway streams them."""
        for number, event in enumerate(self.events, 1):
            yield f"id: {EventPosition(EXECUTION, number, 0)}\ndata: {event_to_json(event)}\n\n".encode()


def end_frame(run_id: str, status: RunStatus, text: str) -> bytes:
    """The event `end` of a stream."""
    kind = "agent.completed" if status is RunStatus.completed else "agent.escalated"
    event = {"type": kind, "payload": {"run_id": run_id, "outcome": text}}
    end = {"run_id": run_id, "status": status, "event": event, "kind": "", "message": "", "handoff": ""}
    return f"event: end\ndata: {json.dumps(end)}\n\n".encode()


TOOLS = ("fetch", "read_file", "search_ledger", "look_up_rate", "write_file", "send_mail")


def long_course(steps: int, began: datetime, *, seed: int = 7) -> Course:
    """A run of many steps: calls of milliseconds to minutes, retries, refusals, approvals, and a wait of three days."""
    draw = random.Random(seed)  # noqa: S311 - the same again each time
    course = Course(f"Check {steps:,} invoices against the ledger and list what does not match.", began)
    while course.steps < steps:
        number = course.steps + 1
        count = min(draw.choice((1, 1, 1, 1, 2, 3)), steps - course.steps)
        text = f"Invoice {number}: the amount is in the ledger; the next one is looked up. " * draw.choice((0, 1, 1, 4))
        asks = number % 97 < count
        calls = course.think(
            draw.choice((0.4, 1.3, 2.5, 6.0)),
            text,
            *((draw.choice(TOOLS), {"invoice": f"2026-{number + n:05}", "lines": n + 3}) for n in range(count)),
            rule="payments" if asks else "",
        )
        if asks:
            course.ask_about(calls[0], "a payment over 500 EUR", rule="payments", groups=("finance",))
            course.wait(**({"days": 3} if abs(number - steps // 2) < 60 else {"minutes": draw.choice((2, 40))}))
            course.answer("maria@example.com")
        if count > 1:
            course.make_together(calls, sorted(draw.choices((4, 30, 240, 900), k=count)), {"matches": True})
        elif number % 61 == 0:
            course.refuse(calls[0], "the rule `no writes at night` denies it")
        else:
            course.begin(calls[0])
            for attempt in range(2, 2 + (number % 43 == 0) * draw.choice((1, 3))):
                course.wait(seconds=2)
                course.retry(calls[0].tool, attempt, "503 Service Unavailable")
            course.wait(milliseconds=draw.choice((3, 12, 80, 700, 4_000, 55_000) if number % 9 else (180_000, 3, 12)))
            failed = error_outcome("http", "404 Not Found") if number % 29 == 0 else {"matches": True, "line": number}
            course.finish(calls[0], failed)
        if number % 500 < count:
            course.add(ContinuedAsNew())
    course.think(3.0, "All invoices are checked.")
    course.add(RunEnded())
    return course
