"""A made-up project: a small company whose agents keep the books, answer customers and look after a web site."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.page.course import APPROVALS, MODEL, POLICY, Course
from perdure.client.details import ListedSubtask, RunDetails, RunRecord
from perdure.client.lanes import LaneRecord, LaneStatus
from perdure.client.overview import AgentTotal, Overview
from perdure.client.questions import ListedQuestion, QuestionList
from perdure.contracts.conversation import LaneView, Turn, TurnEnd, WaitingView
from perdure.contracts.people import Sender, SentBy
from perdure.contracts.policy import PolicyVerdict, Verdict
from perdure.contracts.run.limits import Share, SubtaskStatus
from perdure.contracts.run.signals import Decision
from perdure.contracts.run.state import QuestionView, RunStatus, RunView, TermsView
from perdure.contracts.run.turn import Usage
from perdure.contracts.tool import Approval, Effect, ToolKind, error_outcome
from perdure.decisions.ids import json_digest
from perdure.decisions.text.formatting import format_approval, format_doubt
from perdure.features.delegation.contract import DelegationRequest, DelegationState, DelegationStatus, SubtaskState
from perdure.features.delegation.events import DelegationFinished, DelegationStarted
from perdure.process.agents import AgentDetails, AgentList, ToolDetails
from perdure.registry import Figures

SHOWN, LONG, OPEN_LONG, BURSTS = "books-2026-10", "long", "long-open", "bursts"
MAIL = {
    "to": "accounts@northwind.example",
    "subject": "Invoice 2026-0417: payment of 1,280.00 EUR is 30 days late",
    "body": (
        "Dear Ms Okafor,\n\n"
        "our invoice 2026-0417 of 28 September over 1,280.00 EUR was due on 28 October. We have no payment of it "
        "on our account. It may have crossed with this mail; if so, please ignore it.\n\n"
        "If there is a question about the invoice, answer here, and we look into it today.\n\n"
        "Kind regards\nAccounting, Tern & Daughters"
    ),
}
EDIT = {
    "path": "site/prices.md",
    "old_string": (
        "## Delivery\n\nWe deliver within five working days.\n"
        "Delivery costs 6.90 EUR.\nFrom 80 EUR on it is free.\n\nReturns are free for 14 days."
    ),
    "new_string": (
        "## Delivery\n\nWe deliver within three working days.\n"
        "Delivery costs 4.90 EUR.\nFrom 80 EUR on it is free.\n\nReturns are free for 30 days."
    ),
}
BANK = {"account": "DE02 1203 0000 0000 2020 51", "from": "2026-10-01", "to": "2026-10-31"}
GOAL = (
    "Close the books of October: compare the bank statement with our invoices, remind whoever is late, "
    "and pay what is due."
)

PLAN = "1. Read the bank statement and the invoices.\n2. Find what does not match.\n3. Remind, and pay what is due."


def approval(
    name: str, call: tuple[str, dict[str, Any]], asked: datetime, groups: tuple[str, ...], why: str
) -> QuestionView:
    """The question about a call, for which the rule `why` asks."""
    tool, arguments = call
    verdict = PolicyVerdict(verdict=Verdict.ask, rule=why, policy=POLICY)
    return QuestionView(
        id=name,
        kind="approval",
        text=format_approval(tool, arguments, verdict),
        options=APPROVALS,
        step=7,
        tool=tool,
        tool_use_id="toolu_7_0",
        call=json_digest(arguments)[:24],
        arguments=arguments,
        terms=(TermsView(approvers=groups, quorum=max(len(groups), 1)),),
        asked_at=asked,
        expires_at=asked + timedelta(hours=30),
    )


def shown_course(now: datetime) -> Course:
    """The run of the pictures: a wait of three days beside calls of milliseconds, and a question that is open."""
    course = Course(GOAL, now - timedelta(days=3, hours=5))
    statement, invoices, terms = course.think(
        6.4,
        PLAN,
        ("fetch_statement", BANK),
        ("list_invoices", {"month": "2026-10"}),
        ("read_file", {"path": "terms-of-payment.md"}),
        thinking="The statement, the open invoices and our terms do not depend on each other: read them together.",
    )
    course.make_together([terms, invoices, statement], [3, 240, 910], {"rows": 212, "unmatched": 3})
    [rate] = course.think(
        3.1, "Two payments are in dollars.", ("look_up_rate", {"currency": "USD", "on": "2026-10-31"})
    )
    course.begin(rate)
    for attempt in (2, 3):
        course.wait(seconds=2.5)
        course.retry("look_up_rate", attempt, "503 Service Unavailable")
    course.wait(seconds=4)
    course.finish(rate, {"USD/EUR": 0.9214})
    _delegate(course)
    [payment] = course.think(
        4.8,
        "The invoice of Fjord Paper is due, and the goods have arrived. The other two wait for a credit note.",
        ("pay_invoice", {"invoice": "FP-20931", "iban": "NO93 8601 1117 947", "amount": "4180.00", "currency": "EUR"}),
        rule="money",
    )
    course.ask_about(payment, "payments over 1,000 EUR", groups=("finance",))
    course.wait(days=3, minutes=7)
    course.answer("maria", text="checked with the warehouse")
    course.make(payment, 1340, {"payment": "p-55120", "booked": "today"}, Effect.once)
    [night] = course.think(
        2.2,
        "",
        ("pay_invoice", {"invoice": "AX-17", "amount": "90.00", "currency": "EUR"}),
        rule="no double payments",
        verdict=Verdict.deny,
    )
    course.refuse(night, "the rule `no double payments`: AX-17 was paid on 12 October")
    [book] = course.think(
        3.0,
        "AX-17 was paid before, so nothing is due.",
        ("book_entries", {"month": "2026-10"}),
        rule="ledger",
        verdict=Verdict.allow,
    )
    course.make(book, 48_000, {"entries": 212, "balance": "0.00"}, Effect.keyed)
    [journal] = course.think(1.4, "", ("read_file", {"path": "journal-2026-10.csv"}))
    course.make(journal, 12, error_outcome("not_found", "there is no file journal-2026-10.csv in the workspace"))
    [mail] = course.think(
        5.1,
        "One customer is 30 days late. The first reminder is friendly, as our terms of payment say.",
        ("send_mail", MAIL),
        rule="letters",
    )
    course.wait(seconds=1)
    course.ask_about(mail, "mails to customers", rule="letters", groups=("accounting",))
    return course


SUBTASKS = (("match-imports", "matcher"), ("match-subscriptions", "matcher"), ("check-vat", "tax-clerk"))


def _delegate(course: Course) -> None:
    course.think(5.2, "Three parts of the check do not depend on each other: peers do them.")
    step = course.steps = course.steps + 1
    subtasks = [{"id": name, "agent": agent, "instructions": f"{name} of 2026-10"} for name, agent in SUBTASKS]
    request = DelegationRequest.model_validate(
        {
            "run_id": SHOWN,
            "agent": "bookkeeper",
            "step": step,
            "depth": 0,
            "max_depth": 2,
            "budget": Share(steps=60, tokens=200_000).model_dump(),
            "subtasks": subtasks,
        }
    )
    runs = {name: f"{SHOWN}-{name}" for name, _ in SUBTASKS}
    course.add(DelegationStarted(request, runs))
    course.wait(minutes=6)
    states = tuple(
        SubtaskState(
            id=name,
            agent=agent,
            run_id=runs[name],
            status=SubtaskStatus.done,
            outcome=f"{name}: nothing is missing",
        )
        for name, agent in SUBTASKS
    )
    course.add(DelegationFinished(DelegationState(status=DelegationStatus.done, subtasks=states)))


def record(  # noqa: PLR0913 - the columns of a list
    run_id: str,
    status: RunStatus,
    agent: str,
    began: datetime,
    seconds: float | None,
    cost: float | None,
    waiting_for: str = "",
    **more: Any,
) -> RunRecord:
    """A run in a list; without `seconds` it is open."""
    known = {
        "dry_run": False,
        "held": False,
        "subtasks_failed": False,
        "wedged": False,
        "steps": 7,
        "parent": None,
        "conversation": "",
    }
    return RunRecord.model_validate(
        known
        | {
            "run_id": run_id,
            "conversation": "",
            "status": status,
            "agent": agent,
            "waiting_for": waiting_for,
            "cost_usd": cost,
            "started_at": began,
            "closed_at": None if seconds is None else began + timedelta(seconds=seconds),
        }
        | more
    )


@dataclass
class Project:
    """All that the server answers with. `now` is when it was made: everything else is before it."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))

    def __post_init__(self) -> None:
        self.shown = shown_course(self.now)
        self.open_runs = self._open_runs()
        self.ended_runs = self._ended_runs()

    def ago(self, **units: float) -> datetime:
        return self.now - timedelta(**units)

    # ---- runs

    def _open_runs(self) -> list[RunRecord]:
        person, tool = RunStatus.waiting_on_human, RunStatus.waiting_on_tool
        rows: tuple[tuple[str, RunStatus, str, float, float | None, str], ...] = (
            ("crawl-shop-pages", RunStatus.running, "site-keeper", 0.02, 0.11, ""),
            ("answer-4713", RunStatus.running, "support", 0.05, 0.01, ""),
            ("transcribe-board-meeting", tool, "scribe", 1.2, 0.31, "tool: transcribe"),
            ("audit-subscriptions", RunStatus.running, "bookkeeper", 2.5, 0.74, ""),
            ("prices-page", person, "site-keeper", 4, 0.06, "human: approve edit_file (editors)"),
            ("answer-4711", person, "support", 6, 0.02, "human: asks: May I promise the refund?"),
            ("order-toner", person, "bookkeeper", 22, 0.04, "human: settle order"),
            (SHOWN, person, "bookkeeper", 77, 0.62, "human: approve send_mail (accounting)"),
        )
        return [
            record(name, status, agent, self.ago(hours=h), None, usd, wait)
            for name, status, agent, h, usd, wait in rows
        ]

    def _ended_runs(self) -> list[RunRecord]:
        done, failed = RunStatus.completed, RunStatus.failed
        rows: tuple[tuple[str, RunStatus, str, float, float, float | None], ...] = (
            ("answer-4712", done, "support", 0.4, 41, 0.02),
            ("answer-4710", done, "support", 1.1, 8, 0.01),
            ("price-check-2026-11-27", done, "site-keeper", 3, 734, 0.09),
            ("answer-4709", RunStatus.escalated, "support", 3.5, 96, 0.03),
            ("import-supplier-list", failed, "bookkeeper", 5, 1260, 0.44),
            ("answer-4708", done, "support", 8, 23, 0.01),
            ("newsletter-draft", RunStatus.cancelled, "site-keeper", 9, 180, 0.05),
            ("backup-report", RunStatus.timed_out, "site-keeper", 11, 1200, None),
        )
        return [record(name, status, agent, self.ago(hours=h), s, usd) for name, status, agent, h, s, usd in rows]

    def runs(self) -> list[RunRecord]:
        return sorted((*self.open_runs, *self.ended_runs), key=lambda run: run.started_at, reverse=True)

    def many_runs(self, count: int) -> list[RunRecord]:
        statuses = (*([RunStatus.completed] * 6), RunStatus.failed, RunStatus.escalated, RunStatus.cancelled)
        agents = ("bookkeeper", "support", "site-keeper", "scribe")
        return [
            record(
                f"run-{count - n:05}",
                statuses[n % 9],
                agents[n % 4],
                self.ago(minutes=7 * n + 9),
                5 + 37 * n % 500,
                0.01,
            )
            for n in range(count)
        ]

    def details(self, run_id: str, course: Course, *, is_open: bool) -> RunDetails:
        """The details of a run whose course is written down."""
        began, ended = course.events[0].at or self.now, None if is_open else course.now
        status = RunStatus.completed if ended else RunStatus.waiting_on_human if course.open else RunStatus.running
        state = RunView(
            run_id=run_id,
            status=status,
            goal=getattr(course.events[0], "goal", ""),
            agent="bookkeeper",
            model=MODEL,
            created_at=began,
            updated_at=course.now,
            step=course.steps,
            max_steps=max(60, course.steps),
            turns=course.turns,
            reframes=0,
            max_reframes=3,
            pending=(),
            completed_steps=tuple(range(1, course.steps)),
            workspace=run_id,
            resumable=False,
            resume_from=None,
            artifacts=("artifacts/unmatched.csv",),
            question=course.open[0] if course.open else None,
            questions=tuple(course.open),
            usage=Usage(input=9_412, output=3_871, cache_read=181_020, cache_write=22_400),
            cost_usd=0.62,
            active_seconds=104.0,
            ignored=(),
            plan=PLAN,
        )
        return RunDetails(
            known=record(
                run_id,
                status,
                "bookkeeper",
                began,
                (ended - began).total_seconds() if ended else None,
                0.62,
                "human: approve send_mail",
            ),
            answered=True,
            age_seconds=0.0,
            state=state,
            started_by=SentBy(sender=Sender(door="gateway", person="maria"), by="maria"),
            subtasks=_subtasks(course) if run_id == SHOWN else (),
        )

    # ---- what waits, and the project in short

    def questions(self) -> QuestionList:
        toner = {"supplier": "Officina", "article": "toner 117A", "count": 4}
        refund = QuestionView(
            id="q1",
            kind="question",
            text="The parcel of order 4711 came open and one cup is broken. Shall I promise the refund, or a new cup?",
            options=("the refund", "a new cup"),
            asked_at=self.ago(hours=5),
        )
        doubt = QuestionView(
            id="q1",
            kind="resume_unsafe",
            text=format_doubt("order", toner),
            options=(Decision.run_again, Decision.use_result, Decision.give_up),
            step=3,
            tool="order",
            asked_at=self.ago(hours=21),
        )
        mail = self.shown.open[0]
        edit = approval("q1", ("edit_file", EDIT), self.ago(hours=3), ("editors",), "changes of the shop's pages")
        asked = (
            (SHOWN, "bookkeeper", GOAL, 77.0, mail),
            (
                "prices-page",
                "site-keeper",
                "Bring the page of prices up to date with the list of 1 December.",
                4.0,
                edit,
            ),
            ("answer-4711", "support", "Answer the mail of order 4711.", 6.0, refund),
            ("order-toner", "bookkeeper", "Order what is missing in the office.", 22.0, doubt),
        )
        return QuestionList(
            questions=tuple(
                ListedQuestion(
                    run_id=run_id,
                    agent=agent,
                    goal=goal,
                    waiting_for="",
                    started_at=self.ago(hours=hours),
                    question=question,
                )
                for run_id, agent, goal, hours, question in asked
            )
        )

    def overview(self, since: datetime) -> Overview:
        wedged = record("nightly-report", RunStatus.running, "scribe", self.ago(hours=14), None, 0.2, wedged=True)
        return Overview(
            since=since,
            agents=(
                AgentTotal(agent="support", runs=41, cost_usd=0.87),
                AgentTotal(agent="site-keeper", runs=6, cost_usd=1.02),
                AgentTotal(agent="bookkeeper", runs=4, cost_usd=1.84),
            ),
            is_partial=False,
            open={RunStatus.running: 3, RunStatus.waiting_on_human: 4, RunStatus.waiting_on_tool: 1},
            failed=tuple(run for run in self.ended_runs if run.status in (RunStatus.failed, RunStatus.timed_out)),
            wedged=(wedged.model_copy(update={"wedged_by": "NameError: name 'report' is not defined"}),),
            dead_letters=1,
            figures={"reconciler": Figures(counts={"claim": 1})},
            has_worker=True,
            task_queue="perdure",
            namespace="default",
            web_ui="http://localhost:8233",
        )

    # ---- agents, conversations, and the lists of features

    def agents(self) -> AgentList:
        return AgentList(agents=tuple(_agent(*row) for row in AGENTS))

    def conversations(self) -> list[LaneRecord]:
        turn = self.open_runs[1]
        rows = (
            ("support-4711", LaneStatus.idle, 30, None),
            ("support-4713", LaneStatus.busy, 2, turn),
            ("board", LaneStatus.closed, 400, None),
        )
        return [
            LaneRecord(
                conversation_id=name,
                status=status,
                started_at=self.ago(hours=hours),
                closed_at=self.ago(hours=9) if status is LaneStatus.closed else None,
                turn=run,
            )
            for name, status, hours, run in rows
        ]

    def lane(self) -> LaneView:
        """A conversation whose third turn runs: the run of the pictures."""
        said = (
            (
                "Which invoices of September are open?",
                "Three: 2026-0398, 2026-0417 and 2026-0420, together 2,911.50 EUR.",
                80,
            ),
            ("Who is late with 0417?", "Northwind. It was due on 28 October; they had no reminder yet.", 78),
        )
        recent = tuple(
            Turn(
                request_id=f"r{n}",
                run_id=f"ask-{n}",
                asked=asked,
                end=TurnEnd.completed,
                said=text,
                at=self.ago(hours=hours),
            )
            for n, (asked, text, hours) in enumerate(said, 1)
        )
        return LaneView(
            conversation_id="books",
            agent="bookkeeper",
            active=WaitingView(request_id="r3", run_id=SHOWN, asked=GOAL, at=self.ago(hours=77)),
            queued=1,
            most_queued=20,
            waiting=(
                WaitingView(request_id="r4", run_id="ask-4", asked="And then plan November.", at=self.ago(hours=1)),
            ),
            recent=recent,
            accepted=4,
            refused=0,
            notices=(),
        )

    def feature_lists(self) -> dict[str, dict[str, Any]]:
        """The lists of features, in the forms of their routes."""
        follow_up = record("wf:ask-northwind", RunStatus.waiting_on_tool, "bookkeeper", self.ago(hours=50), None, 0.03)
        schedule = {
            "name": "month-end",
            "when": "0 6 1 * * (Europe/Berlin)",
            "goal": GOAL,
            "agent": "bookkeeper",
            "overlap": "skip",
            "is_paused": False,
            "next": (self.now + timedelta(days=3)).isoformat(),
            "upcoming": [(self.now + timedelta(days=days)).isoformat() for days in (3, 34, 64)],
            "latest": SHOWN,
            "at_work": [SHOWN],
            "skipped": 0,
            "missed": 0,
            "time_zone": "Europe/Berlin",
        }
        mailbox = {
            "id": "b41c",
            "agent": "scribe",
            "name": "minutes",
            "external": False,
            "available": True,
            "waiting": 2,
            "dead_letters": 0,
            "open": 1,
            "mode": "active",
            "heartbeat_at": self.ago(seconds=4).isoformat(),
            "trouble": "",
        }
        dead = {
            "id": "event:shop:4631",
            "kind": "StartFromEvent",
            "failed_at": self.ago(hours=7).isoformat(),
            "reason": "agent `shipping` is not in the project",
        }
        more = {
            "conversation": "books",
            "summary": "Northwind answers the reminder of invoice 2026-0417",
            "open_tasks": 1,
            "next_at": (self.now + timedelta(days=4)).isoformat(),
        }
        return {
            "follow-ups": {"follow_ups": [follow_up.model_dump(mode="json") | more], "cursor": None},
            "schedules": {"schedules": [schedule], "is_partial": False},
            "mailboxes": {"mailboxes": [mailbox], "is_partial": False},
            "dead-letters": {"dead_letters": [dead], "is_partial": False},
        }


def _subtasks(course: Course) -> tuple[ListedSubtask, ...]:
    began = next(event.at for event in course.events if isinstance(event, DelegationStarted))
    assert began is not None
    runs = (
        record(
            f"{SHOWN}-{name}", RunStatus.completed, agent, began + timedelta(seconds=late), length, 0.04, parent=SHOWN
        )
        for (name, agent), late, length in zip(SUBTASKS, (1, 1, 2), (340, 95, 210), strict=True)
    )
    return tuple(ListedSubtask(**run.model_dump(), depth=1) for run in runs)


ToolRow = tuple[str, ToolKind, Effect, Approval, str]
AGENTS: tuple[tuple[str, str, tuple[ToolRow, ...], tuple[str, ...]], ...] = (
    (
        "bookkeeper",
        "Keeps the books, pays what is due and reminds who is late.",
        (
            ("fetch_statement", ToolKind.mcp, Effect.read, Approval.never, "Return the entries of a bank account."),
            ("list_invoices", ToolKind.python, Effect.read, Approval.never, "List invoices of a month."),
            ("pay_invoice", ToolKind.http, Effect.once, Approval.never, "Pay an invoice from the bank account."),
            ("book_entries", ToolKind.python, Effect.keyed, Approval.never, "Write entries to the ledger."),
            ("send_mail", ToolKind.http, Effect.once, Approval.always, "Send a mail to a customer."),
        ),
        ("matcher", "tax-clerk"),
    ),
    (
        "support",
        "Answers mails of customers.",
        (("find_order", ToolKind.http, Effect.read, Approval.never, "Find an order by its number or its customer."),),
        (),
    ),
    (
        "site-keeper",
        "Keeps the pages of the shop.",
        (("edit_file", ToolKind.native, Effect.keyed, Approval.never, "Replace a part of a file."),),
        (),
    ),
)
MAIL_SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "title": "to", "format": "email"},
        "subject": {"type": "string", "title": "subject"},
        "body": {"type": "string", "title": "body"},
    },
    "required": ["to", "subject", "body"],
}
MONTH_SCHEMA = {
    "type": "object",
    "properties": {
        "month": {"type": "string", "description": "such as 2026-10"},
        "pay": {"type": "boolean", "description": "pay what is due, too"},
        "accounts": {"type": "array", "items": {"type": "string"}, "description": "IBANs; none means all"},
    },
    "required": ["month"],
}


def _agent(name: str, about: str, tools: tuple[ToolRow, ...], peers: tuple[str, ...]) -> AgentDetails:
    return AgentDetails(
        name=name,
        description=about,
        models=(MODEL, "claude-haiku-4-5"),
        tools=tuple(
            ToolDetails(
                name=tool,
                kind=kind,
                effect=effect,
                approval=approval,
                approval_timeout_seconds=None,
                timeout_seconds=60.0,
                description=text,
                input_schema=MAIL_SCHEMA if tool == "send_mail" else {"type": "object"},
            )
            for tool, kind, effect, approval, text in tools
        ),
        server_tools=(),
        limits={"max_steps": 60, "budget_usd": 5.0} if peers else {"max_steps": 20},
        pace=None,
        peers=peers,
        external=False,
        input_schema=MONTH_SCHEMA if peers else None,
        output_schema=None,
    )
