"""Verdicts of the project's policy on calls, given with a model's reply or by the activity `check_policy`."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import islice
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.effects.holding import HeldError
from perdure.activities.model.accept import JudgeCase, Judgement, ask_judge
from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.project import Project
from perdure.activities.providers.port import Model
from perdure.activities.rule_values import RuleReading
from perdure.activities.run.definition import read_definition
from perdure.activities.storage.store import Store, must_have_hash
from perdure.activities.telemetry.metrics import observed
from perdure.activities.telemetry.trace import write_trace
from perdure.activities.temporal import own_run_id, update_with_start
from perdure.activities.tools.printing import in_tool
from perdure.activities.tools.python import load_target
from perdure.contracts.agent import Definition
from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import ToolFault
from perdure.contracts.policy import (
    CallsOfOthers,
    PolicyCheckRequest,
    PolicyContext,
    PolicyFound,
    PolicyLookup,
    PolicyVerdict,
    ReserveRequest,
    Rubric,
    Rule,
    SharedCall,
    Verdict,
)
from perdure.contracts.run.state import RunState
from perdure.contracts.run.transcript import Part, PartKind
from perdure.contracts.run.turn import PolicyReview, PolicyVerdicts
from perdure.contracts.tool import Effect
from perdure.decisions.errors import describe_exception
from perdure.decisions.ids import shared_calls_id
from perdure.decisions.people.terms import MAIL
from perdure.decisions.policy.facts import (
    WEB,
    PastCalls,
    RequestedCall,
    RequestedCalls,
    SharedFacts,
    build_facts,
    facts_of_policies,
    is_in_history,
    latest_outcomes,
    read_past,
    reads_others,
    recorded_facts,
    source_of,
    sources_of_peers,
    used_ids,
)
from perdure.decisions.policy.rules import (
    PENDING,
    Expression,
    FindValue,
    Policy,
    Ruling,
    apply_policy,
    check_facts,
    combine_rulings,
    parse_policy,
)
from perdure.decisions.run.compaction import goal_excerpt
from perdure.decisions.run.reply import MAX_CALLS
from perdure.decisions.text.formatting import escape_markdown, truncate
from perdure.decisions.text.visible_text import fence_text, mark_hidden
from perdure.decisions.tools import UNGOVERNED
from perdure.registry import feature_tools

FUNCTION_TIMEOUT, MODEL_TIMEOUT = 10.0, 30.0  # seconds
REVIEWS_TIMEOUT = 60.0  # seconds for all reviews of a reply: its activity has a margin of two minutes
MAX_THREADS = 8
MIN_TIME = 1.0  # seconds that are left for one of them
MAX_ARGUMENTS = 16_000  # characters of the call that a model sees; longer ones go to a person
MAX_PAST_CALLS, MAX_PAST_ARGUMENTS = 20, 500  # the latest calls that a model sees, and characters of their arguments
MAX_REASON = 300  # characters
ANSWERS = (Verdict.ask, Verdict.allow, Verdict.deny)  # the demo model and others like it choose the first
VERDICT_FIELDS = {"verdict": {"type": "string", "enum": [*ANSWERS]}, "reason": {"type": "string"}}

Answer = tuple[Verdict, str]


@dataclass(frozen=True)
class Reviewer:
    """The reviews that a worker can make."""

    model: Model
    project: Project

    def begin(self, definition: Definition, goal: str, past: PastCalls, *, is_dry: bool = False) -> "Reviews":
        return Reviews(self.model, self.project, definition, goal, past, monotonic() + REVIEWS_TIMEOUT, is_dry)


@dataclass
class Reviews:
    """The reviews of the calls of one reply, until a deadline. `made` are those by models.

    In a dry run no function is called: it may act.
    """

    model: Model
    project: Project
    definition: Definition
    goal: str
    past: PastCalls  # a model sees the latest of them, also if there is no fact `history`
    deadline: float
    is_dry: bool = False
    made: list[PolicyReview] = field(default_factory=list)
    _answers: dict[tuple[str, str | Rubric], Answer] = field(default_factory=dict)

    async def decide(self, ruling: Ruling, use: RequestedCall, facts: Mapping[str, Any]) -> Ruling:
        """Return the ruling with the verdict that its rule asks for. Two policies with the same review make one."""
        rule = ruling.rule
        if rule is None or rule.review is None:
            raise AssertionError("no rule asks for this review")
        key = (use.tool_use_id, rule.review)
        if key not in self._answers:
            self._answers[key] = await self._answer(rule, rule.review, use, facts)
        verdict, text = self._answers[key]
        return replace(ruling, verdict=verdict, reason=truncate(self.project.secrets.redact(text), MAX_REASON))

    async def _answer(self, rule: Rule, review: str | Rubric, use: RequestedCall, facts: Mapping[str, Any]) -> Answer:
        name = review if isinstance(review, str) else f"rubric by {review.model or self.definition.model}"
        limit = FUNCTION_TIMEOUT if isinstance(review, str) else MODEL_TIMEOUT
        seconds = min(limit, left := self.deadline - monotonic())
        if self.is_dry and isinstance(review, str):
            return Verdict.ask, f"{name} is not called in a dry run"
        if left < MIN_TIME:
            return Verdict.ask, f"the review by {name} was not made: those before it took too long"
        try:
            async with asyncio.timeout(seconds):
                if isinstance(review, str):
                    work = partial(copy_context().run, _call_function, review, deepcopy(facts))
                    answer = await asyncio.get_running_loop().run_in_executor(_threads(), work)
                else:
                    shown = describe_call(facts, self.past.history, self.goal)
                    answer = await self._ask_model(rule, review, use, shown, seconds)
            verdict, reason = answer if isinstance(answer, tuple) else (answer, "")
            if verdict not in ANSWERS:
                raise ValueError(f"it returned {verdict!r}")  # noqa: TRY301 - reported as any other failure
        except TimeoutError:
            return Verdict.ask, f"the review by {name} took too long"
        except HeldError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's code and the model may raise anything
            return Verdict.ask, f"the review by {name} failed: {describe_exception(error)}"
        return Verdict(verdict), f"{name}: {reason}" if reason else name

    async def _ask_model(self, rule: Rule, rubric: Rubric, use: RequestedCall, shown: str, seconds: float) -> Answer:
        text = f"# Rubric\n\n{rubric.rubric}\n\n# The call, as data\n\n{shown}"
        case = JudgeCase(
            prompt="review.md",
            text=self.project.secrets.redact(text),
            fields=VERDICT_FIELDS,
            model=rubric.model or self.definition.model,
            patience=seconds,
            limit=seconds,
        )
        review = await observed("review_call", None, self._judge(case, rule, use))
        self.made.append(review)
        _write_trace_line(self.project, review, len(self.made))
        if review.verdict is None:
            raise ValueError("the model gave no verdict")
        return review.verdict, review.reason

    async def _judge(self, case: JudgeCase, rule: Rule, use: RequestedCall) -> PolicyReview:
        started = monotonic()
        judgement = await ask_judge(self.model, self.project, self.definition, case)
        verdict, reason = _read_verdict(judgement)
        return PolicyReview(
            tool_use_id=use.tool_use_id,
            tool=use.tool,
            rule=rule.name,
            model=judgement.model,
            verdict=verdict,
            reason=truncate(self.project.secrets.redact(reason), MAX_REASON),
            usage=judgement.usage,
            cost_usd=judgement.cost_usd,
            duration_ms=round((monotonic() - started) * 1000),
        )


def describe_call(facts: Mapping[str, Any], latest: Sequence[Mapping[str, Any]], goal: str) -> str:
    """Return a call as JSON between fences that it cannot close. Raises ValueError if its arguments are too long."""
    if (length := len(json.dumps(facts["args"], ensure_ascii=False))) > MAX_ARGUMENTS:
        raise ValueError(f"the arguments have {length:,} characters, and a model is shown {MAX_ARGUMENTS:,} at most")
    past = [
        {**call, "args": _shorten(call.get("args", "(too long)")), "at": str(call.get("at", ""))}
        for call in latest[-MAX_PAST_CALLS:]
    ]
    shown = {
        "tool": facts["tool"],
        "effect": facts["effect"],
        "arguments": facts["args"],
        "agent": facts["agent"],
        "goal": goal,
        "caller": facts.get("caller"),
        "read before": facts["run"]["has_read"],
        "calls before": {tool: count for tool, count in facts["run"]["calls"].items() if count},
        "latest calls": past,
        "now": facts["now"].isoformat(timespec="seconds"),
    }
    return fence_text(mark_hidden(json.dumps(shown, ensure_ascii=False, indent=1)))


def _shorten(arguments: Any) -> Any:
    text = json.dumps(arguments, ensure_ascii=False)
    return arguments if len(text) <= MAX_PAST_ARGUMENTS else truncate(text, MAX_PAST_ARGUMENTS)


def _read_verdict(judgement: Judgement) -> tuple[Verdict | None, str]:
    """Return the verdict and its reason. A model that gives none, or more than one, has given none."""
    first, *others = [*islice(judgement.verdicts, 2)] or [{}]
    verdict = first.get("verdict")
    if others or verdict not in ANSWERS:
        return None, ""
    return Verdict(verdict), str(first.get("reason") or "")


def _write_trace_line(project: Project, review: PolicyReview, number: int) -> None:
    key = f"review:{activity.info().activity_id}:{number}"
    line = review.model_dump(mode="json", include={"tool", "rule", "model", "verdict", "reason", "usage"})
    write_trace(project.workspace(own_run_id()), {"key": key, "event": "review", **line, "ms": review.duration_ms})


@cache
def _threads() -> ThreadPoolExecutor:
    """Return threads of their own: a function that never returns keeps its thread, and the worker needs the others."""
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="review")


def _call_function(target: str, facts: Mapping[str, Any]) -> Any:
    with in_tool():
        return load_target(target)(facts)


Reserve = Callable[[str, ReserveRequest], Awaitable[CallsOfOthers]]  # of the request with this root


@dataclass(frozen=True)
class PolicyInForce:
    """The policies that decide about a run's calls: its first one, and the project's present one."""

    policies: tuple[Policy, ...]
    context: PolicyContext | None


def _file_name(ref: str) -> str:
    return f"policy-{ref}.toml"


def write_policy(store: Store, policy: Policy) -> None:
    store.write(_file_name(policy.ref), policy.text.encode())


async def read_stored_policy(store: Store, ref: str) -> Policy:
    """Read a policy by its hash. Raises FileNotFoundError, StoredFileChangedError and PolicyError."""
    data = await asyncio.to_thread(store.read, _file_name(ref))
    return parse_policy(must_have_hash(_file_name(ref), data, ref).decode(), is_stored=True)


async def copy_policy(project: Project, source: Store, target: Store, state: RunState) -> str:
    """Store the policy of a run that continues another one, and return its hash: the origin's, if it began under one.

    Raises FileNotFoundError.
    """
    if state.policy:
        data = await asyncio.to_thread(source.read, _file_name(state.policy))
        await asyncio.to_thread(target.write, _file_name(state.policy), data)
    elif project.policy is not None and project.policy.governs(state.agent):
        await asyncio.to_thread(write_policy, target, project.policy)
        return project.policy.ref
    return state.policy


class PolicyChecks:
    """Verdicts of the policies in force. Without a reviewer, a call that is to be reviewed stays `review`.

    Without `reserve` the calls of other runs are not known.
    """

    def __init__(
        self,
        transcripts: TranscriptCache,
        project: Project,
        reviewer: Reviewer | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        self._reserve = reserve
        self._transcripts = transcripts
        self._project = project
        self._reviewer = reviewer
        self._effects = {route.name: route.effect for route in project.builtins}
        self._effects |= {name: tool.route.effect for name, tool in project.tools.items()}
        self._stepless = {route.name for route in project.builtins if not route.takes_step}
        self._parsed: dict[str, Policy] = {}  # by hash
        self._keeping = set[str]()  # runs whose store has the project's policy

    @activity.defn
    async def check_policy(self, request: PolicyCheckRequest) -> PolicyVerdicts:
        """Return the verdicts on calls of the latest reply that have none, or whose arguments a person has changed."""
        async with heartbeating(own_run_id):
            definition = await read_definition(self._project.stores.of(own_run_id()), request.definition)
            force = await self.load(request.context, definition.agent)
            parts = (await self._transcripts.read_current(request.length, request.head)).transcript.parts
            if force is None:
                return PolicyVerdicts()
            at = next(i for i in reversed(range(len(parts))) if parts[i].kind is PartKind.reply)
            asked = RequestedCalls(parts[at].content, request.unmade, request.edits)
            judged = await self.judge_calls(force, asked, parts[:at], definition, reviewed=request.calls)
        verdicts = {name: judged.verdicts[name] for name in request.calls if name in judged.verdicts}
        return judged.evolve(verdicts=verdicts)

    @activity.defn
    async def find_policy(self, request: PolicyLookup) -> PolicyFound:
        """Return whether a policy that a person accepts can be had: from this worker, or from the run's store."""
        current = self._project.policy.ref if self._project.policy else ""
        try:
            async with heartbeating(own_run_id):
                await self._read_policy(request.policy)
        except (ApplicationError, ValueError):  # it is not there, or not as it was
            return PolicyFound(found=False, current=current)
        return PolicyFound(found=True, current=current)

    async def load(self, context: PolicyContext | None, agent: str) -> PolicyInForce | None:
        """Return the policies that govern the run, if any. Raises StoredFileChangedError and ApplicationError."""
        current = self._project.policy
        policies = [current] if current is not None and current.governs(agent) else []
        if context is not None and context.policy:
            first = await self._read_policy(context.policy)
            policies = [first, *(policy for policy in policies if policy.ref != first.ref)]
        return PolicyInForce(tuple(policies), context) if policies else None

    async def _read_policy(self, ref: str) -> Policy:
        """Return the policy of a run. One that a person has accepted may not be in the run's store yet."""
        store, current = self._project.stores.of(own_run_id()), self._project.policy
        if current is not None and current.ref == ref:
            if own_run_id() not in self._keeping:
                await asyncio.to_thread(write_policy, store, current)
                self._keeping.add(own_run_id())
            return current
        if ref not in self._parsed:
            try:
                self._parsed[ref] = await read_stored_policy(store, ref)
            except FileNotFoundError:
                remedy = "give this worker that policy.toml, or restore the file"
                raise ApplicationError(f"{_file_name(ref)} is not in the run's store: {remedy}") from None
        return self._parsed[ref]

    def _reservation(
        self,
        force: PolicyInForce,
        asked: RequestedCalls,
        parts: Sequence[Part],
        definition: Definition,
        reviewed: Collection[str] | None,
    ) -> ReserveRequest | None:
        """Return the reservation of the calls that rules count, if a rule reads or counts one of them."""
        shared, context = facts_of_policies(force.policies), force.context
        tools = {tool.name for tool in (*definition.tools, *definition.searched)}
        uses = [use for use in asked.uses[:MAX_CALLS] if use.tool in tools and use.tool_use_id not in asked.unmade]
        uses = [use for use in uses if reviewed is None or use.tool_use_id in reviewed]
        calls = [use for use in uses if use.tool not in self._stepless and shared.has(use.tool)]
        outcomes = latest_outcomes(parts, shared.has) if shared.history else {}
        if not (calls or outcomes or any(reads_others(force.policies, use.tool, definition.agent) for use in uses)):
            return None
        info, now = activity.info(), datetime.now(UTC)
        return ReserveRequest(
            run=own_run_id(),
            place=len(parts),
            order=f"{info.scheduled_time.isoformat()} {info.attempt:06}",
            replaces=reviewed is None,
            conversation=context.conversation if context else "",
            calls=tuple(_shared_call(use, now, shared) for use in calls),
            outcomes=outcomes,
            known=context.runs if context else (),
            seen=used_ids(parts, shared.has) if context and context.conversation else (),
            needs_history=shared.history,
        )

    async def judge_calls(  # noqa: PLR0913 - what a verdict needs
        self,
        force: PolicyInForce,
        asked: RequestedCalls,
        parts: Sequence[Part],
        definition: Definition,
        now: datetime | None = None,
        reviewed: Collection[str] | None = None,
        others: CallsOfOthers | None = None,
    ) -> PolicyVerdicts:
        """Return the verdicts on the calls of a reply, whose conversation so far is `parts`. It is `now`, if given.

        `others` are the calls of other runs of the request, if they are known; else they are read.

        An earlier call of the same reply counts for the later ones as if it had been made. With `reviewed`, only these
        tool uses are reviewed.
        """
        is_dry = force.context is not None and force.context.dry_run
        peers = partial(peer_sources, self._project)
        past = read_past(parts, force.context, peers)
        past.add_reply(asked.content)
        shared = facts_of_policies(force.policies)
        if others is None and self._reserve is not None and shared and not is_dry:
            request = self._reservation(force, asked, parts, definition, reviewed)
            root = force.context.work.root if force.context and force.context.work else ""
            others = await self._reserve(root or request.run, request) if request else None
        past.add_others(others or CallsOfOthers())
        reviewer = self._reviewer
        reviews = reviewer.begin(definition, goal_excerpt(parts), past, is_dry=is_dry) if reviewer else None
        reading = RuleReading()
        is_named = any(policy.names(definition.agent) for policy in force.policies)
        tools = [tool.name for tool in (*definition.tools, *definition.searched)]
        counted = [*tools, *(name for name in shared.tools or () if name in self._effects)]
        verdicts: dict[str, PolicyVerdict] = {}
        for use in asked.uses[:MAX_CALLS]:
            if use.tool not in tools or use.tool_use_id in asked.unmade:
                continue
            at, outcome = now or datetime.now(UTC), PENDING
            if use.tool not in UNGOVERNED and (is_named or use.tool in feature_tools()):
                effect = self._effects.get(use.tool, Effect.once)
                facts = build_facts(use, effect, definition.agent, force.context, past, counted, at)
                facts["peers"] = sources_of_peers(use, peers)
                review = reviews if reviewed is None or use.tool_use_id in reviewed else None
                verdict = await _judge(force.policies, use, facts, reading, review)
                verdicts[use.tool_use_id] = verdict
                outcome = ToolFault.denied if verdict.verdict is Verdict.deny else PENDING
            if use.tool not in self._stepless:
                past.add_call(use, outcome, at)
        return PolicyVerdicts(verdicts=verdicts, reviews=tuple(reviews.made) if reviews else ())


def _shared_call(use: RequestedCall, now: datetime, shared: SharedFacts) -> SharedCall:
    has_arguments = shared.history and is_in_history(use.arguments)
    return SharedCall(
        tool_use_id=use.tool_use_id, tool=use.tool, arguments=use.arguments if has_arguments else None, at=now
    )


def peer_sources(project: Project, names: Iterable[str]) -> set[str]:
    """Return what these agents and their own peers may read."""
    seen, left, sources = set[str](), list(names), set[str]()
    while left:
        agent = project.agents.get(name := left.pop())
        if agent is None or name in seen:
            continue
        seen.add(name)
        left += agent.peers
        sources |= {MAIL} if agent.mailbox else set()
        sources |= {source for tool in agent.tools if (source := source_of(tool))}
        sources |= {WEB for tool in agent.server_tools if str(tool.get("name", "")).startswith("web")}
    return sources


async def _apply_all(
    policies: Sequence[Policy], use: RequestedCall, facts: dict[str, Any], reading: RuleReading
) -> tuple[list[Ruling], frozenset[str]]:
    """Return the rulings of the policies, and the names of the facts that their rules looked at."""
    agent, checked, read = facts["agent"], check_facts(facts), set[Expression]()

    def apply_them(find: FindValue) -> list[Ruling]:
        def find_and_note(expression: Expression) -> Any:
            read.add(expression)
            return find(expression, checked)

        return [ruling for policy in policies for ruling in apply_policy(policy, use.tool, agent, find_and_note)]

    expressions = [when for policy in policies for when in policy.expressions_about(use.tool, agent)]
    rulings = await reading.run(apply_them, expressions, checked)
    return rulings, frozenset[str]().union(*(expression.names for expression in read))


async def _judge(
    policies: Sequence[Policy],
    use: RequestedCall,
    facts: dict[str, Any],
    reading: RuleReading,
    reviews: Reviews | None,
) -> PolicyVerdict:
    rulings, names = await _apply_all(policies, use, facts, reading)
    if reviews is not None and all(ruling.verdict is not Verdict.deny for ruling in rulings):
        rulings = [await reviews.decide(r, use, facts) if r.verdict is Verdict.review else r for r in rulings]
    return combine_rulings(rulings, recorded_facts(names, facts))


MAX_RESERVATIONS_IN_FLIGHT = 2  # of one request from this process, as for the requests to a lane
PAUSES = Backoff(0.2, 9.0, factor=4.0, retries=4)
ANSWER_WITHIN = 20.0  # seconds of one try

_semaphores: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Semaphore] = WeakValueDictionary()


class SharedCallsUnavailableError(Exception):
    """The calls of other runs could not be read. The message is one line."""


async def reserve_shared_calls(client: Client, root: str, request: ReserveRequest) -> CallsOfOthers:
    """Reserve calls of a run for the request that began with the run `root`. Return those of its other runs.

    A repeat reserves the same. Raises SharedCallsUnavailableError.
    """
    start = {
        "workflow": "SharedCalls",
        "arg": {"root": root},
        "id": shared_calls_id(root),
        "task_queue": activity.info().task_queue,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "static_summary": escape_markdown(truncate(f"the calls of {root}, for rules", 200)),
    }
    body = request.model_dump(mode="json", exclude_defaults=True)
    error: Exception | None = None
    async with _semaphores.setdefault(
        (asyncio.get_running_loop(), root), asyncio.Semaphore(MAX_RESERVATIONS_IN_FLIGHT)
    ):
        for pause in (*PAUSES, None):
            try:
                async with asyncio.timeout(ANSWER_WITHIN):
                    return await update_with_start(client, "reserve", body, start, CallsOfOthers)
            except (
                RPCError,
                TimeoutError,
                WorkflowUpdateFailedError,
                WorkflowUpdateRPCTimeoutOrCancelledError,
            ) as failure:
                error = failure
            if pause is not None:
                await asyncio.sleep(pause)
    reason = truncate(str(error) or type(error).__name__)
    raise SharedCallsUnavailableError(f"the calls of other runs cannot be read: {reason}") from error
