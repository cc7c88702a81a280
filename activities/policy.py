"""Verdicts of the project's policy on calls, given with a model's reply or by the activity `check_policy`."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.effects.attempts import heartbeating
from activities.model.transcript_cache import TranscriptCache
from activities.project import Project
from activities.review import Reviewer, Reviews
from activities.run.definition import read_definition
from activities.storage.store import Store, must_have_hash
from activities.temporal import own_run_id
from contracts.agent import Definition
from contracts.people.policy import PolicyCheckRequest, PolicyContext, PolicyFound, PolicyLookup, PolicyVerdict, Verdict
from contracts.run.state import RunState
from contracts.run.transcript import Part, PartKind
from contracts.run.turn import PolicyVerdicts
from contracts.tool import Effect
from decisions.builtin_tools import UNGOVERNED
from decisions.policy.expression import build_context
from decisions.policy.facts import (
    MAIL,
    WEB,
    RequestedCall,
    build_facts,
    read_past,
    recorded_facts,
    source_of,
    tool_uses_of,
)
from decisions.policy.rules import Policy, apply_policy, combine_rulings, parse_policy
from decisions.run.compaction import goal_excerpt
from decisions.run.reply import MAX_CALLS


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


async def carry_policy(project: Project, source: Store, target: Store, state: RunState) -> str:
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
    """Verdicts of the policies in force. Without a reviewer, a call that is to be reviewed stays `review`."""

    def __init__(self, transcripts: TranscriptCache, project: Project, reviewer: Reviewer | None = None) -> None:
        self._transcripts = transcripts
        self._project = project
        self._reviewer = reviewer
        self._effects = {route.name: route.effect for route in project.builtins}
        self._effects |= {name: tool.route.effect for name, tool in project.tools.items()}
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
            uses = [
                replace(use, arguments=request.edits.get(use.tool_use_id, use.arguments))
                for use in tool_uses_of(parts[at].content)
            ]
            judged = await self.judge_calls(force, uses, parts[:at], definition, reviewed=request.calls)
        verdicts = {name: judged.verdicts[name] for name in request.calls if name in judged.verdicts}
        return judged.model_copy(update={"verdicts": verdicts})

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
        if context is not None:
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

    async def judge_calls(  # noqa: PLR0913 - what a verdict needs
        self,
        force: PolicyInForce,
        uses: Sequence[RequestedCall],
        parts: Sequence[Part],
        definition: Definition,
        now: datetime | None = None,
        reviewed: Collection[str] | None = None,
    ) -> PolicyVerdicts:
        """Return the verdicts on the calls of a reply, whose conversation so far is `parts`. It is `now`, if given.

        An earlier call of the same reply counts for the later ones, unless it is denied. With `reviewed`, only these
        tool uses are reviewed.
        """
        reviews = self._reviewer.begin(definition, goal_excerpt(parts)) if self._reviewer else None
        past = read_past(parts, force.context, self._peer_sources)
        tools = [tool.name for tool in (*definition.tools, *definition.searched)]
        verdicts: dict[str, PolicyVerdict] = {}
        for use in uses[:MAX_CALLS]:
            if use.tool in UNGOVERNED or use.tool not in tools:
                continue
            effect = self._effects.get(use.tool, Effect.once)
            facts = build_facts(use, effect, definition.agent, force.context, past, tools, now or datetime.now(UTC))
            review = reviews if reviewed is None or use.tool_use_id in reviewed else None
            verdicts[use.tool_use_id] = verdict = await _judge(force.policies, use, facts, review)
            past.counts[use.tool] += verdict.verdict is not Verdict.deny
        return PolicyVerdicts(verdicts=verdicts, reviews=tuple(reviews.made) if reviews else ())

    def _peer_sources(self, names: Iterable[str]) -> set[str]:
        """Return what these peers and their own peers may read."""
        seen, left, sources = set[str](), list(names), set[str]()
        while left:
            agent = self._project.agents.get(name := left.pop())
            if agent is None or name in seen:
                continue
            seen.add(name)
            left += agent.peers
            sources |= {MAIL} if agent.mailbox else set()
            sources |= {source for tool in agent.tools if (source := source_of(tool))}
            sources |= {WEB for tool in agent.server_tools if str(tool.get("name", "")).startswith("web")}
        return sources


async def _judge(
    policies: Sequence[Policy], use: RequestedCall, facts: dict[str, Any], reviews: Reviews | None
) -> PolicyVerdict:
    context = build_context(facts)
    rulings = [apply_policy(policy, use.tool, facts["agent"], context) for policy in policies]
    names = frozenset[str]().union(*(ruling.names for ruling in rulings))
    if reviews is not None:
        rulings = [await reviews.decide(r, use, facts) if r.verdict is Verdict.review else r for r in rulings]
    return combine_rulings(tuple(rulings), recorded_facts(names, facts))
