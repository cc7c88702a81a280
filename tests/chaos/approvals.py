"""People decide while everything between them and the effect is killed: workers, gateways, and their own commands."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from itertools import cycle, islice, product
from random import Random
from typing import Any

from perdure.client.records.run_facts import RunFacts, collect_facts
from perdure.client.run_list import find_run
from perdure.client.watch import HistoryReader
from perdure.contracts.run.export import ExportedAnswer, ExportedQuestion
from perdure.decisions.ids import request_key
from tests.chaos.auditor import Audit, audit
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.doors import PAUSE, Door, Sent, Terminal, people, question_about
from tests.chaos.environment import PATIENCE, Environment, Workers, until
from tests.chaos.task import Task, Use

LANES = 4  # of rounds, at the same time
CLOCKS = timedelta(seconds=2)  # between a time of ours and one of the server on the same machine
TOOLS = {"pay": "once", "book": "keyed", "transfer": "once"}
TOOL = """
[tools.{name}]
kind = "http"
effect = "{effect}"
approval = "{approval}"
description = "The tool {name}."
input_schema = {{ type = "object", properties = {{ n = {{ type = "integer" }} }} }}
url = "{url}/{effect}/{name}"
timeout = "30s"
"""
STICKY = "4s"  # more than a query waits: a query that another queue has brought again runs ahead of what is decided
GROUPS = '\n[people]\nfinance = ["ann", "bob"]\n'
POLICY = '[[rule]]\nname = "two people"\ntools = ["transfer"]\nthen = "ask"\napprovers = ["finance"]\nquorum = 2\n'
AGENT = "---\nname: default\ntools: [pay, book, transfer]\n---\nDo what the goal says.\n"


class Moment(StrEnum):
    """The moment of a round at which something is killed."""

    asked = "asked"  # the questions are open
    deciding = "deciding"  # answers are on their way
    decided = "decided"  # an answer was just accepted
    effect = "effect"  # a call is at its tool


class Target(StrEnum):
    worker = "worker"
    door = "door"  # the gateway, and the person's command
    both = "both"


@dataclass(frozen=True)
class Plan:
    """The decision of people about a call. `arguments` are those that they change it to."""

    number: int  # of its step
    tool: str
    proposed: Mapping[str, Any]
    decision: str = "approve"
    people: tuple[str, ...] = ("ann",)
    arguments: Mapping[str, Any] | None = None

    @property
    def use(self) -> Use:
        return self.tool, dict(self.proposed)

    @property
    def effective(self) -> Mapping[str, Any] | None:
        """The arguments that the tool is to get; None: it is not to be called."""
        return None if self.decision == "deny" else self.arguments or self.proposed


def plan_calls(random: Random) -> tuple[list[Plan], list[Plan]]:
    """A turn whose calls are decided one by one, each in another way, and one that is approved as a whole."""
    kinds: list[dict[str, Any]] = [
        {"tool": "pay"},
        {"tool": "pay", "changes": True},
        {"tool": random.choice(("pay", "book")), "decision": "deny"},
        {"tool": "transfer", "people": ("ann", "bob")},
        {"tool": "transfer", "people": ("ann", "bob"), "changes": True},
        {"tool": "book", "changes": random.random() < 0.5},
    ]
    random.shuffle(kinds)
    whole: list[dict[str, Any]] = [{"tool": tool} for tool in random.sample(("pay", "book", "pay"), 3)]
    plans = list(_numbered([*kinds, *whole], random))
    return plans[: len(kinds)], plans[len(kinds) :]


def _numbered(kinds: Sequence[dict[str, Any]], random: Random) -> Iterator[Plan]:
    for number, kind in enumerate(kinds, start=1):
        changes = kind.pop("changes", False)
        cents = random.randrange(10**6)
        changed = {"n": number, "cents": cents + 1} if changes else None
        yield Plan(number, proposed={"n": number, "cents": cents}, arguments=changed, **kind)


@dataclass
class Round:
    """A run, the people who decide about its calls, and what is killed at which moment."""

    it: Environment
    run: str
    queue: str
    door: Door
    workers: Workers
    moment: Moment
    target: Target
    random: Random
    plans: list[Plan] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    strikes: int = 0

    async def play(self) -> None:
        each, whole = plan_calls(self.random)
        self.plans = [*each, *whole]
        turns = tuple(tuple(plan.use for plan in turn) for turn in (each, whole))
        await self.it.start(Task(self.run, turns), self.queue)
        terminal = Terminal(self.it)
        await self._play_turn(each, lambda: self._decide_each(each), terminal)
        await self._play_turn(whole, lambda: self._approve_all(whole, terminal), terminal)
        await self.it.handles[self.run].result()

    async def _play_turn(self, turn: list[Plan], decide: Callable[[], Awaitable[None]], terminal: Terminal) -> None:
        await self._until_asked(turn)
        if self.moment is Moment.asked:
            await self._strike(terminal)
        accepted = sum(bool(sent.accepted) for sent in self.sent)
        deciding = asyncio.ensure_future(decide())
        if self.moment is Moment.deciding:
            await asyncio.sleep(self.random.uniform(0, 0.3))
        elif self.moment is Moment.decided:
            some = accepted + self.random.randint(1, 3)
            await until(lambda: sum(bool(sent.accepted) for sent in self.sent) >= some or deciding.done())
        elif self.moment is Moment.effect:
            numbers = [plan.number for plan in turn]
            await until(lambda: any(self.it.tools.is_at_work(self.run, n) for n in numbers) or self._are_made(turn))
        if self.moment is not Moment.asked:
            await self._strike(terminal)
        await deciding

    async def _strike(self, terminal: Terminal) -> None:
        self.strikes += 1
        kills = []
        if self.target is not Target.door:
            kills.append(self.workers.fault("kill"))
        if self.target is not Target.worker:
            kills += [self.door.gateways.fault("kill"), terminal.kill()]
        await asyncio.gather(*kills)

    def _are_made(self, turn: list[Plan]) -> bool:
        return all(plan.effective is None or self.it.tools.of(self.run, plan.number) for plan in turn)

    async def _until_asked(self, turn: list[Plan]) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                asked = await self.door.questions_of(self.run)
                if all(question_about(asked, plan.number) for plan in turn):
                    return
                await asyncio.sleep(PAUSE)

    async def _decide_each(self, turn: list[Plan]) -> None:
        await asyncio.gather(*(self._decide(plan) for plan in turn))

    async def _decide(self, plan: Plan) -> None:
        for person in plan.people:
            arguments = plan.arguments if person == plan.people[0] else None
            async with asyncio.timeout(PATIENCE):
                while (question := await self._asks(plan, person)) is not None:
                    sent = Sent(self.run, question["id"], plan.number, person, plan.decision, arguments=arguments)
                    self.sent.append(sent)
                    if (await self.door.answer(sent, question["call"])).accepted:
                        break

    async def _asks(self, plan: Plan, person: str) -> dict[str, Any] | None:
        """The question about the call, if it still waits for this person."""
        question = question_about(await self.door.questions_of(self.run), plan.number)
        if question is None or any(person in terms.get("approved_by", ()) for terms in question.get("terms", ())):
            return None
        return question

    async def _approve_all(self, turn: list[Plan], terminal: Terminal) -> None:
        async with asyncio.timeout(PATIENCE):
            while still_open := await self.door.questions_of(self.run):
                numbers = {plan.number for plan in turn}
                asked = {q["arguments"]["n"]: q["id"] for q in still_open if q.get("arguments")}
                new = [Sent(self.run, q, n, "ann", "approve", "cli") for n, q in asked.items() if n in numbers]
                self.sent += new
                if await terminal.approve_all(self.run, "ann"):
                    for sent in new:
                        sent.accepted = True
                    return


async def killed_between(context: ScenarioContext, *, rounds: int) -> Row:
    """R27: a worker, the way that a person answers by, or both die between proposal, decision and effect."""
    places = list(product(Moment, Target))
    Random(context.seed).shuffle(places)
    places = list(islice(cycle(places), rounds))
    async with context.environment(more=GROUPS, sticky=STICKY) as it, it.person(), people(it) as open_door:
        write_project(it)

        async def play(lane: int) -> list[Round]:
            """One after the other, with a worker and a gateway that no other lane's kills hit."""
            queue, played = f"r27-{lane}", []
            door, workers = open_door(), it.start_workers(queue, 1)
            while places:
                moment, target = places.pop()
                run = f"r27-{moment}-{target}-{len(places)}"
                played.append(Round(it, run, queue, door, workers, moment, target, Random(f"{context.seed} {run}")))
                await played[-1].play()
            return played

        played = [each for lane in await asyncio.gather(*map(play, range(LANES))) for each in lane]
        late = await it.all_ended()
        found = await audit(it, late=late)
        for each in played:
            facts = await read_facts(it, each.run)
            judge_decisions(found, it, each.run, each.plans, each.sent, facts)
        return row(it, found, _note(played))


def write_project(it: Environment) -> None:
    folder, url = it.project.folder, it.tools.base_url
    with (folder / "perdure.toml").open("a") as file:
        for name, effect in TOOLS.items():
            approval = "never" if name == "transfer" else "always"  # the policy asks about it
            file.write(TOOL.format(name=name, effect=effect, approval=approval, url=url))
    (folder / "policy.toml").write_text(POLICY)
    (folder / "agents" / "default.md").write_text(AGENT)


async def read_facts(it: Environment, run: str) -> RunFacts:
    return collect_facts(await HistoryReader(it.client).read_executions(await find_run(it.client, run)))


def judge_decisions(
    found: Audit, it: Environment, run: str, plans: Sequence[Plan], sent: Sequence[Sent], facts: RunFacts
) -> None:
    """Each effect has its decision, each decision its effect and its record; the tool got what was decided."""
    for plan in plans:
        about = [each for each in sent if each.number == plan.number]
        _judge_effect(found, it, run, plan, about)
        _judge_record(found, plan, about, facts.questions)
        for each in about:
            if each.accepted is False and not each.reason:
                found.wrong(f"{run}: an answer to {each.question} was rejected without a reason")


def _judge_effect(found: Audit, it: Environment, run: str, plan: Plan, sent: Sequence[Sent]) -> None:
    place, effects = f"{run}: step {plan.number}", it.tools.of(run, plan.number)
    if plan.effective is None:
        if effects or it.tools.requests[request_key(run, plan.number)]:
            found.wrong(f"{place} was denied, and its tool was called")
        return
    if not effects:
        found.wrong(f"{place} was approved, and never made")
    for effect in effects:
        approved = {each.person for each in sent if each.began < effect.at and each.decision == "approve"}
        if not approved >= set(plan.people):
            found.wrong(f"{place} was made when only {sorted(approved)} of {plan.people} had approved it")
        if effect.arguments != plan.effective:
            found.wrong(f"{place} was made with {effect.arguments}, and decided were {plan.effective}")


def _judge_record(found: Audit, plan: Plan, sent: Sequence[Sent], questions: Sequence[ExportedQuestion]) -> None:
    """Each decision is in the record once, with who, when and through which door."""
    names = {each.question for each in sent}
    answers = [answer for question in questions if question.id in names for answer in question.answers]
    who = Counter(_person_of(answer) for answer in answers)
    if len(names) != 1 or who != Counter(plan.people):
        found.wrong(f"{sent[0].run}: {sorted(names)} has answers of {dict(who)}, and {plan.people} decided")
    for answer in answers:
        if not any(_is_record_of(answer, each) for each in sent):
            found.wrong(f"{sent[0].run}: {sorted(names)} has an answer that no person sent: {answer}")
    for each in sent:
        if each.accepted and not any(_is_record_of(answer, each) for answer in answers):
            found.wrong(f"{each.run}: an answer to {each.question} was accepted, and has no record: {each}")


def _person_of(answer: ExportedAnswer) -> str:
    sender = answer.sender
    return (sender and (sender.token or sender.person)) or ""


def _is_record_of(answer: ExportedAnswer, sent: Sent) -> bool:
    is_same = (_person_of(answer), answer.decision, answer.arguments) == (sent.person, sent.decision, sent.arguments)
    is_from = answer.sender is not None and answer.sender.door == sent.door
    return is_same and is_from and -CLOCKS < answer.at - sent.at < timedelta(seconds=PATIENCE)


def _note(played: Sequence[Round]) -> str:
    sent = [each for round_ in played for each in round_.sent]
    accepted, lost = (sum(each.accepted is what for each in sent) for what in (True, None))
    strikes = sum(each.strikes for each in played)
    return f"{strikes} cuts; {accepted} answers accepted, {lost} whose reply was lost and that were sent again"
