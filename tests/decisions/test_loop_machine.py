"""The loop under any model, any results and any order of signals; what must hold after each step, and does.

The same orders against the real server: tests/workflows/test_loop_agreement.py.
"""

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure.contracts.failures import ToolFault
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import Call, Ending, RunState, RunStatus
from perdure.contracts.run.transcript import PartKind
from perdure.contracts.run.turn import ContextFull, ModelTurn, Summary, Usage
from perdure.contracts.tool import Approval, Effect, ToolKind, ToolOutcome, error_outcome
from perdure.decisions.text.formatting import run_details, state_view
from tests.drawn import OWN, Said, a_reply, a_signal, a_state, brought, fitting, turn_of
from tests.played import Played, failed_model

SEEDS = st.integers(0, 2**32)  # hypothesis would draw what is rare as often as what is not
GUARDED = {route.name for route in OWN if route.approval is Approval.always}
OUTSIDE = {route.name for route in OWN if route.kind is ToolKind.signal}
MAY_CHANGE = {
    "ignored",
    "steered",
}  # what may change in a run that has ended: the notices, and messages that came too late
SUMMARY = Summary(
    text="", tail=0, pins=(), pin_bytes=0, cut=None, is_deep=False, before_tokens=9, after_tokens=4,
    before_messages=9, after_messages=4, model="scripted", usage=Usage(input=3, output=1), cost_usd=0.01, duration_ms=5,
)  # fmt: skip

Step = Callable[[Played], None]


def limits_of(rng: Random) -> dict[str, Any]:
    """A limit that is reached soon, or none."""
    some: tuple[dict[str, Any], ...] = (
        {},
        {},
        {"budget_tokens": rng.randint(1, 30)},
        {"budget_usd": rng.randint(1, 20) / 100},
        {"hard_limit": timedelta(milliseconds=rng.randint(1, 200))},
        {"soft_limit": timedelta(milliseconds=rng.randint(1, 200))},
    )
    return rng.choice(some)


def changed_fields(before: RunState, after: RunState) -> set[str]:
    return {name for name in RunState.model_fields if getattr(before, name) != getattr(after, name)}


def _changes(call: Call) -> bool:
    return call.effect is not Effect.read


def through_json(state: RunState) -> RunState:
    return RunState.model_validate_json(state.model_dump_json())


class RunMachine(RuleBasedStateMachine):
    """Steps are kept as they were drawn, so that the same may be played again, otherwise cut into executions."""

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        rng = Random(seed)
        self.first = a_state(rng, **limits_of(rng))
        self.run = Played(self.first)
        self.steps: list[Step] = []
        self.last: tuple[str, tuple[Any, ...]] | None = None
        self.sent_at_halt: tuple[int, int] | None = None
        self.longest = 0
        self.said: Said | None = None
        self.approved: set[int | str | None] = set()  # steps, and tools where a person approved all their calls
        self.came: set[tuple[int, str]] = set()  # results from outside: the step, and the tool that they name
        self.handed_out: set[str] = set()  # tool uses that somebody outside had, when the run was stopped

    def take(self, step: Step) -> None:
        before = self.run.state
        was_over = self.run.is_over
        outside = {w.call.tool_use_id for w in self.run.waits if w.kind == "outside" and w.call and _changes(w.call)}
        self.steps.append(step)
        step(self.run)
        if was_over:
            assert changed_fields(before, self.run.state) <= MAY_CHANGE
        if self.run.halt is not None and self.sent_at_halt is None:
            self.sent_at_halt = self.sent
            self.handed_out = outside

    def send(self, name: str, args: tuple[Any, ...]) -> None:
        """A signal. Whom it is not for, it changes nothing but the notices."""
        before = self.run.state
        body = args[0] if args and isinstance(args[0], dict) else {}
        payload = body.get("payload", {})
        self.take(lambda run: run.signal(name, *args))
        if name == "tool_result" and payload:
            self.came.add((payload["step"], payload["tool"]))
            assert payload["run_id"] == before.run_id or changed_fields(before, self.run.state) <= MAY_CHANGE
        changes = changed_fields(before, self.run.state) - MAY_CHANGE
        if name == "human_input" and before.open_questions:
            named = [
                question
                for question in before.open_questions
                if (body.get("question_id", question.id), body.get("call", question.call))
                == (question.id, question.call)
            ]
            assert len(named) == 1 or not changes
            if changes and named[0].kind is QuestionKind.approval and body["decision"] != "deny":
                self.approved.add(named[0].tool if body["decision"] == "approve_tool" else named[0].step)

    def give(self, place: int, value: Any) -> None:
        self.take(lambda run: run.give(run.waits[place], value))

    @property
    def sent(self) -> tuple[int, int]:
        return self.run.asked, self.run.made.total()

    @property
    def is_asking(self) -> bool:
        return any(wait.kind == "model" for wait in self.run.waits)

    # What comes.

    @precondition(lambda self: self.run.waits)
    @rule(seed=SEEDS)
    def go_on(self, seed: int) -> None:
        """One of the things that the run waits for is there."""
        rng = Random(seed)
        place = rng.randrange(len(self.run.waits))
        wait = self.run.waits[place]
        if self.run.halt is not None and not wait.has_an_effect and rng.random() < 0.5:
            self.take(lambda run: run.cut(run.waits[place]))  # it heard of the halt before it was done
        elif wait.kind == "model":
            self.give(place, self.reply(rng))
        elif wait.kind == "summary":
            self.give(place, SUMMARY)
        elif wait.call is not None and wait.kind == "call":
            self.give(place, self.outcome(rng, wait.call))
        elif wait.kind == "pause" or (wait.times_out and rng.random() < 0.1):
            self.give(place, None)
        else:
            self.send(*fitting(rng, self.run))

    def reply(self, rng: Random) -> ModelTurn | ContextFull | Ending:
        if rng.random() < 0.1:
            full = ContextFull(tokens=9, window=8, messages=4, was_refused=rng.random() < 0.5)
            return full if rng.random() < 0.8 else failed_model("no")
        self.said = a_reply(rng, self.said)
        price = rng.choice((0.0, 0.01, 0.01, 0.01, None))
        return turn_of(self.said, self.run.asked, duration_ms=rng.randrange(20), cost_usd=price)

    def outcome(self, rng: Random, call: Call) -> ToolOutcome | None:
        outcome = brought(call)
        if outcome is None or (call.effect is Effect.once and call.generation > 1 and rng.random() < 0.3):
            return None
        if rng.random() < 0.1:
            outcome = error_outcome(ToolFault.in_doubt, "sent, and may have happened")
        return outcome.evolve(duration_ms=rng.randrange(20), interrupted=rng.random() < 0.1)

    @rule(seed=SEEDS)
    def signal(self, seed: int) -> None:
        self.last = a_signal(Random(seed), self.run)
        self.send(*self.last)

    @precondition(lambda self: self.last is not None)
    @rule()
    def again(self) -> None:
        """Events come at least once."""
        self.send(*(self.last or ("", ())))

    @rule()
    def lengthen(self) -> None:
        self.take(Played.lengthen)

    # What holds.

    @invariant()
    def every_tool_use_has_one_result_in_its_place(self) -> None:
        blocks = [block for part in self.run.transcript.parts for block in part.content if "type" in block]
        uses = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        open_ones = [call.tool_use_id for call in self.run.state.calls]
        assert results + open_ones == uses
        assert not (open_ones and self.is_asking)

    @invariant()
    def no_effect_is_made_twice(self) -> None:
        once = {call.step for call in self.run.state.calls if call.effect is Effect.once}
        assert all(count == 1 for (step, _), count in self.run.made.items() if step in once)

    @invariant()
    def what_needs_a_person_is_made_once_one_approved_it(self) -> None:
        for wait in self.run.waits:
            if wait.kind == "call" and wait.call is not None and wait.call.tool in GUARDED:
                assert self.approved & {wait.call.step, wait.call.tool}

    @invariant()
    def a_result_from_outside_is_of_its_step_and_tool(self) -> None:
        for part in self.run.transcript.parts:
            if part.kind is PartKind.result and part.about["tool"] in OUTSIDE and "voted" in str(part.content):
                assert (part.about["step"], part.about["tool"]) in self.came

    @invariant()
    def what_was_handed_out_when_it_was_stopped_may_have_happened(self) -> None:
        shown = {block.get("tool_use_id"): block for part in self.run.transcript.parts for block in part.content}
        for use in self.handed_out & shown.keys():
            assert "may have happened" in str(shown[use]["content"])

    @invariant()
    def past_its_soft_limit_it_asks_for_the_last_time(self) -> None:
        state = self.run.state
        if self.is_asking and timedelta(milliseconds=state.active_ms) >= state.limits.soft_limit:
            assert state.is_closing

    @invariant()
    def no_limit_is_passed_by_more_than_a_call(self) -> None:
        state, limits = self.run.state, self.run.state.limits
        assert state.turns <= limits.max_turns
        assert state.step <= limits.max_steps
        assert state.reframes <= limits.max_reframes
        assert self.longest <= state.step
        self.longest = state.step
        if limits.budget_tokens is not None and self.is_asking:
            assert state.usage.total < limits.budget_tokens
        if limits.budget_usd is not None and state.cost_usd is not None and self.is_asking:
            assert state.cost_usd < limits.budget_usd

    @invariant()
    def steps_are_counted_on_without_a_gap(self) -> None:
        results = [part for part in self.run.transcript.parts if part.kind is PartKind.result]
        steps = [part.about["step"] for part in results] + [call.step for call in self.run.state.calls]
        assert [step for step in steps if step is not None] == list(range(1, self.run.state.step + 1))

    @invariant()
    def it_ends_once_and_in_one_way(self) -> None:
        state = self.run.state
        assert self.run.ends <= 1
        assert self.run.is_over == (not self.run.waits)
        if self.run.is_over:
            assert (state.pending, state.calls, state.question) == ((), (), None)
            expected = RunStatus.cancelled if state.ending is None else state.ending.status
            assert state.status is expected
        else:
            assert state.status in (RunStatus.running, RunStatus.waiting_on_human, RunStatus.waiting_on_tool)
            assert (state.question is not None) == (state.status is RunStatus.waiting_on_human)

    @invariant()
    def once_it_is_stopped_nothing_more_is_asked_or_made(self) -> None:
        assert self.sent_at_halt in (None, self.sent)

    @invariant()
    def what_is_pending_is_what_is_in_flight(self) -> None:
        pending = [each.step for each in self.run.state.pending]
        in_flight = [wait.call.step for wait in self.run.waits if wait.call is not None and wait.call.step is not None]
        if self.run.halt is None:
            assert sorted(pending) == sorted(in_flight)

    @invariant()
    def it_can_be_continued_and_shown(self) -> None:
        state = self.run.state
        assert through_json(state) == state
        assert run_details(state)
        assert state_view(state).completed_steps == tuple(sorted(state_view(state).completed_steps))

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        again, whole, cut = Played(self.first), Played(self.first), Played(self.first)
        for step in self.steps:
            step(again)
            if step is not Played.lengthen:
                step(whole)
                cut.state = through_json(cut.state)
                step(cut)
        for other in (again, whole, cut):
            assert other.state == self.run.state
            assert other.transcript.head == self.run.transcript.head


TestRun = RunMachine.TestCase
TestRun.settings = settings(max_examples=150, stateful_step_count=60)
