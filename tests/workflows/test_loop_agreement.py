"""The loop on the real server and the loop over the decisions alone come to the same, step by step.

A seed draws what the model answers, what calls bring, and what is signalled when. Each model request and each call is
held until the play lets it go on, so the order is the same in both. After each step both must wait for the same and
have the same state; at the end, the same outcome, conversation and calls made. Both sides decide by
`perdure/decisions/`: what is shown is that `workflows/` carries it out. Left to hand-written tests, since the clock
decides there: timeouts of waits and the limits of time, tokens and money.

PERDURE_PLAYS=500 plays more seeds, PERDURE_PLAY_SEED=… one.
"""

import asyncio
import os
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from random import Random
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from perdure.activities.effects.ledger import LedgerEntry
from perdure.activities.tools.interface import CallContext
from perdure.contracts.run.state import Call, RunState, RunStatus, Snapshot
from perdure.contracts.tool import ToolOutcome
from perdure.decisions.ids import call_digest, generation_of, request_key
from perdure.decisions.run.outcome import ending_event
from perdure.decisions.run.transcript import add_message
from perdure.testkit.model_server import Reply, ScriptedAnswer, fails
from perdure.testkit.tools import ScriptedTool
from tests.drawn import OWN, Said, a_reply, a_signal, brought, some_reads, turn_of
from tests.played import Played, Wait, failed_model
from tests.workflows.conftest import APART_AND_FUSED, MakeWorld, World

MAX_INLINE = 60_000  # characters of a result that stays as it is
MAX_STEPS = 60  # of a play, before it is cancelled
SEEDS = (
    [int(os.environ["PERDURE_PLAY_SEED"])]
    if "PERDURE_PLAY_SEED" in os.environ
    else range(int(os.environ.get("PERDURE_PLAYS", "15")))
)
DECLARED = {"effect", "kind", "approval", "timeout", "approval_timeout"}
TIMED = {  # what the clock, the server or the size of a result decides
    *(
        "created_at",
        "updated_at",
        "active_ms",
        "usage",
        "cost_usd",
        "unpriced",
        "events",
        "pending_trace",
        "artifacts",
        "journal",
    ),
    *("execution", "workspace"),
}


class HeldSteps:
    """Holds what the run asks of the world."""

    def __init__(self) -> None:
        self.calls: dict[int, asyncio.Future[ToolOutcome]] = {}
        self.asked: list[Any] = []  # conversations that the model was handed
        self._answers: SimpleQueue[ScriptedAnswer] = SimpleQueue()
        self.answered = 0
        self.tools = [ScriptedTool(route.name, self._held, **route.model_dump(include=DECLARED)) for route in OWN]

    def script(self, body: dict[str, Any]) -> ScriptedAnswer:
        self.asked.append(body["messages"])
        try:
            return self._answers.get(timeout=60)
        except Empty:
            return fails(400, message="the play went on without an answer")

    def answer(self, answer: ScriptedAnswer) -> None:
        self.answered += 1
        self._answers.put(answer)

    @property
    def is_asked(self) -> bool:
        return len(self.asked) > self.answered

    async def _held(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        let_go: asyncio.Future[ToolOutcome] = asyncio.get_running_loop().create_future()
        self.calls[context.step] = let_go
        try:
            return await let_go
        finally:
            del self.calls[context.step]

    @property
    def made(self) -> Counter[tuple[int, int]]:
        """Calls by step and generation."""
        contexts = [context for tool in self.tools for _, context in tool.calls]
        return Counter((context.step, generation_of(context.idempotency_key)) for context in contexts)


class Play:
    """One run twice: `run` on the server, `pure` by hand."""

    def __init__(self, seed: int, it: World, held: HeldSteps) -> None:
        self.rng = Random(seed)
        self.reads_often, self.fails_often = it.project.fuse_reads, 0.1 if it.project.fuse_reads else 0.02
        self.it, self.held = it, held
        self.log: list[str] = []
        self.said: Said | None = None
        self.doubted: Counter[tuple[int, int]] = Counter()

    async def whole(self) -> None:
        limits = {"max_steps": (5, 60, 60), "max_turns": (10, 60, 60), "max_reframes": (1, 3)}
        self.run = await self.it.start("see", limits={name: self.rng.choice(each) for name, each in limits.items()})
        await self.it.until(lambda: self.held.is_asked)
        self.pure = Played((await self.snapshot()).state)
        for _ in range(MAX_STEPS):
            if self.pure.is_over:
                break
            await self.step()
            await self.agreed()
        if not self.pure.is_over:
            await self.signal("cancel")
            await self.agreed()
            while not self.pure.is_over:
                self.let_go()
                await self.agreed()
        await self.must_end_alike()

    async def step(self) -> None:
        kinds = {wait.kind for wait in self.pure.waits}
        if not kinds & {"model", "call"} or self.rng.random() < 0.15:
            await self.signal(*a_signal(self.rng, self.pure))
        else:
            self.let_go()

    async def signal(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.log.append(f"{name} {str(args)[:300]}")
        self.pure.signal(name, *args)
        for wait in list(self.pure.waits):
            if self.pure.halt is not None and not wait.has_an_effect:
                self.pure.cut(wait)
        self.go_by_themselves()
        await self.run.signal(name, args=list(args))

    def go_by_themselves(self) -> None:
        """What nobody holds on the server: a pause before a retry, and a call that was begun before."""
        while wait := next((wait for wait in self.pure.waits if is_unheld(wait)), None):
            if wait.call is not None and wait.kind == "call":
                self.doubted[wait.call.step or 0, wait.call.generation] += 1
            self.pure.give(wait)

    def put_in_doubt(self, call: Call) -> None:
        """As if a worker that is dead by now had begun it."""
        run_id, step = self.pure.state.run_id, call.step or 0
        page = LedgerEntry(
            store=self.it.project.stores.of(run_id),
            key=request_key(run_id, step),
            step=step,
            execution=self.pure.state.execution,
            call=call_digest(call.tool, call.arguments),
        )
        page.claim(call.tool, timedelta(seconds=30))

    def let_go(self) -> None:
        wait = self.rng.choice([wait for wait in self.pure.waits if wait.kind in ("model", "call")])
        if wait.call is not None:
            outcome = brought(wait.call)
            assert outcome is not None
            self.log.append(f"step {wait.call.step} brings {str(outcome)[:100]}")
            self.held.calls[wait.call.step or 0].set_result(outcome)
            self.pure.give(wait, outcome)
        elif self.rng.random() < self.fails_often:
            self.log.append("the model fails")
            self.held.answer(fails(400, message="no"))
            self.pure.give(wait, failed_model("the provider refused the request (400): no"))
        else:
            reads = self.reads_often and self.rng.random() < 0.6
            self.said = said = some_reads(self.rng) if reads else a_reply(self.rng, self.said)
            self.log.append(str(said))
            self.pure.give(wait, turn_of(said, self.pure.asked))
            for call in self.pure.state.calls:
                if call.step is not None and brought(call) is None:
                    self.put_in_doubt(call)
            self.held.answer(Reply(said.text, said.uses, said.stop))
        self.go_by_themselves()

    async def snapshot(self) -> Snapshot:
        return Snapshot.model_validate(await self.run.query("snapshot"))

    async def agreed(self) -> None:
        """Until both wait for the same, in the same state."""
        wanted = comparable(self.pure.state)
        wanted_calls = {wait.call.step for wait in self.pure.waits if wait.kind == "call" and wait.call is not None}
        is_asked = any(wait.kind == "model" for wait in self.pure.waits)
        real: Any = None

        async def same() -> bool:
            nonlocal real
            real = comparable((await self.snapshot()).state)
            if real != wanted or set(self.held.calls) != wanted_calls:
                return False
            return self.pure.is_over or self.held.is_asked == is_asked  # the server may hold one that was cut off

        try:
            await self.it.until(same)
        except TimeoutError:
            names = {**wanted, **real}
            differing = {
                name: (wanted.get(name), real.get(name)) for name in names if wanted.get(name) != real.get(name)
            }
            about = (differing, (wanted_calls, set(self.held.calls)), (is_asked, self.held.is_asked))
            raise AssertionError(f"pure and real differ: {about}\nafter\n" + "\n".join(self.log)) from None
        if is_asked:
            messages: list[dict[str, Any]] = []
            for part in (*self.pure.transcript.parts, *self.pure.ahead):
                add_message(messages, part)
            assert shown(self.held.asked[-1]) == shown(messages), self.log

    async def must_end_alike(self) -> None:
        state = self.pure.state
        if state.status in (RunStatus.completed, RunStatus.escalated):
            event, expected = await self.run.result(), ending_event(state).model_dump(mode="json")
            assert event["type"] == expected["type"]
            assert {**event["payload"], "artifacts": []} == {**expected["payload"], "artifacts": []}, self.log
        else:
            with pytest.raises(WorkflowFailureError) as failure:
                await self.run.result()
            assert getattr(failure.value.cause, "type", None) == (state.ending and state.ending.reason), self.log
        assert self.held.made == self.pure.made - self.doubted, self.log
        assert (await self.snapshot()).length == self.pure.transcript.length, self.log
        live = await self.it.parts(self.run)
        tail = [
            part.model_dump(mode="json")
            for part in self.pure.transcript.parts[self.pure.transcript.length - len(live) :]
        ]
        assert shown(live) == shown(tail), self.log
        assert await self.it.failed_tasks(self.run) == 0


def is_unheld(wait: Wait) -> bool:
    return wait.kind == "pause" or (wait.kind == "call" and wait.call is not None and brought(wait.call) is None)


def comparable(state: RunState) -> dict[str, Any]:
    """A state without what the clock decides, and with ids that depend on the order alone."""
    whole = state.model_dump(mode="json", exclude=TIMED)
    for place, call in enumerate(whole["calls"]):
        call["tool_use_id"] = place
        if call["outcome"] is not None:
            call["outcome"] = (call["outcome"]["status"], call["outcome"]["error"])
    for each in whole["pending"]:
        del each["since"]
        each.pop("handed_out", None)
    for made in whole["recent"]:
        made["result"] = made["result"] is not None
    for question in whole.get("asked", ()):
        for name in ("asked_at", "expires_at", "tool_use_id"):
            question.pop(name, None)
    return {**whole, "sections": state.journal.model_dump(mode="json", exclude={"entries", "artifacts"})}


def shown(messages: Any) -> list[Any]:
    """Messages or parts with ids by their place, and large results by their kind alone."""
    names: dict[str, int] = {}
    blocks = []
    for message in messages:
        for block in message["content"]:
            compared = {name: value for name, value in block.items() if name != "cache_control"}
            for name in ("id", "tool_use_id"):
                if name in compared:
                    compared[name] = names.setdefault(compared[name], len(names))
            content = str(compared.get("content", ""))
            if len(content) > MAX_INLINE or "artifact_path" in content:
                compared["content"] = "large"
            blocks.append((message.get("role") or message.get("kind"), compared))
    return blocks


@pytest.mark.parametrize("fuses", APART_AND_FUSED)
@pytest.mark.parametrize("seed", SEEDS)
async def test_the_real_loop_and_the_pure_one_come_to_the_same(
    world: MakeWorld,
    client: Client,
    short_history_client: Client,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    fuses: bool,
) -> None:
    """Where the history is soon long, no reads are fused, so these plays need a server where it is not."""
    monkeypatch.setattr("perdure.activities.model.turn.MAX_CONTINUATIONS", 0)  # the pure loop sees whole replies only
    held = HeldSteps()
    async with world(held.script, *held.tools, server=client if fuses else short_history_client, fuses=fuses) as it:
        play = Play(seed, it, held)
        try:
            await play.whole()
        finally:
            while held.is_asked:
                held.answer(Reply("the play is over"))
            for call in list(held.calls.values()):
                with suppress(asyncio.InvalidStateError):
                    call.set_result(ToolOutcome())
