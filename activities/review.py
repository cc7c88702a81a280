"""Reviews of calls that rules of the policy ask for: by a function or a model. If one fails, a person is asked."""

import asyncio
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from time import monotonic
from typing import Any

from temporalio import activity

from activities.model.judge import JudgeCase, Judgement, ask_judge
from activities.project import Project
from activities.providers.port import Model
from activities.telemetry.metrics import observed
from activities.telemetry.trace import write_trace
from activities.temporal import own_run_id
from activities.tools.printing import in_tool
from activities.tools.python import load_target
from contracts.agent import Definition
from contracts.people.policy import Rule, Verdict
from contracts.people.rubric import Rubric
from contracts.run.turn import PolicyReview
from decisions.policy.facts import RequestedCall
from decisions.policy.rules import Ruling
from decisions.text.formatting import truncate
from decisions.text.quoting import fence_text
from decisions.text.visible_text import mark_hidden

FUNCTION_TIMEOUT, MODEL_TIMEOUT = 10.0, 30.0  # seconds
REVIEWS_TIMEOUT = 60.0  # seconds for all reviews of a reply: its activity has a margin of two minutes
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

    def begin(self, definition: Definition, goal: str) -> "Reviews":
        return Reviews(self.model, self.project, definition, goal, monotonic() + REVIEWS_TIMEOUT)


@dataclass
class Reviews:
    """The reviews of the calls of one reply, until a deadline. `made` are those by models."""

    model: Model
    project: Project
    definition: Definition
    goal: str
    deadline: float
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
        if left < MIN_TIME:
            return Verdict.ask, f"the review by {name} was not made: those before it took too long"
        try:
            async with asyncio.timeout(seconds):
                if isinstance(review, str):
                    answer = await asyncio.to_thread(_call_function, review, deepcopy(facts))
                else:
                    answer = await self._ask_model(rule, review, use, facts, seconds)
            verdict, reason = answer if isinstance(answer, tuple) else (answer, "")
            if verdict not in ANSWERS:
                raise ValueError(f"it returned {verdict!r}")  # noqa: TRY301 - reported as any other failure
        except TimeoutError:
            return Verdict.ask, f"the review by {name} took too long"
        except Exception as error:  # noqa: BLE001 - the user's code and the model may raise anything
            return Verdict.ask, f"the review by {name} failed: {type(error).__name__}: {error}"
        return Verdict(verdict), f"{name}: {reason}" if reason else name

    async def _ask_model(
        self, rule: Rule, rubric: Rubric, use: RequestedCall, facts: Mapping[str, Any], seconds: float
    ) -> Answer:
        text = f"# Rubric\n\n{rubric.rubric}\n\n# The call, as data\n\n{describe_call(facts, self.goal)}"
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


def describe_call(facts: Mapping[str, Any], goal: str) -> str:
    """Return a call as JSON between fences that it cannot close. Raises ValueError if its arguments are too long."""
    if (length := len(json.dumps(facts["args"], ensure_ascii=False))) > MAX_ARGUMENTS:
        raise ValueError(f"the arguments have {length:,} characters, and a model is shown {MAX_ARGUMENTS:,} at most")
    latest = facts["history"][-MAX_PAST_CALLS:]
    shown = {
        "tool": facts["tool"],
        "effect": facts["effect"],
        "arguments": facts["args"],
        "agent": facts["agent"],
        "goal": goal,
        "caller": facts.get("caller"),
        "read before": facts["run"]["has_read"],
        "calls before": {tool: count for tool, count in facts["run"]["calls"].items() if count},
        "latest calls": [{**call, "args": _shorten(call["args"]), "at": str(call.get("at", ""))} for call in latest],
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


def _call_function(target: str, facts: Mapping[str, Any]) -> Any:
    with in_tool():
        return load_target(target)(facts)
