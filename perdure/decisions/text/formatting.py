"""Text about a run for people: summaries in the timeline, current details, the `state` view."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from perdure.contracts.failures import ToolFault
from perdure.contracts.models import NO_RESULT
from perdure.contracts.policy import PolicyVerdict, Verdict
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.limits import Spent
from perdure.contracts.run.signals import AskedTerms, Question, QuestionKind
from perdure.contracts.run.state import (
    Call,
    Pending,
    PendingView,
    QuestionView,
    RunState,
    RunStatus,
    RunView,
    TermsView,
)
from perdure.contracts.tool import Effect, ServerTask, ToolOutcome, error_outcome
from perdure.decisions.people.terms import asked_groups, requesters_of, unmet_terms
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.visible_text import cut_text, render_arguments, render_visible
from perdure.decisions.tool_requests import readable_nonce
from perdure.registry import feature_tools, load

MEND_ADVICE = "roll the workers back or fix their code; the run then continues by itself"  # for a wedged run
MAX_APPROVAL = 20_000  # characters of a call as shown for approval; a larger one is rejected
MAX_CHANGE = 2000  # characters of changed arguments in a line
QUESTION_SEPARATOR = " | "  # in `WaitingFor`
MAX_SHOWN_QUESTIONS = 3  # in the current details
MAX_SUMMARY_CALL = 64  # characters of a call in the timeline; the Web UI truncates longer labels, with the step


def truncate(text: str, length: int = 300) -> str:
    """Return one line of at most `length` characters, with nothing hidden in it. Errors have the default."""
    return cut_text(" ".join(render_visible(text[: 50 * length]).split()), length)


def format_duration(seconds: float) -> str:
    """Format a duration in one unit: "12 s", "3 min", "5 h", "2 d"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def format_signal_notice(signal: str, reason: str) -> str:
    """Describe a signal that had no effect. Its sender chose the name, and a terminal may show it."""
    return truncate(f"{signal}: {reason}", 300)


def call_summary(call: Call, *, was_lost: bool = False) -> str:
    again = f" · attempt {call.generation}" if call.generation > 1 else ""
    action = "looked up" if call.effect is Effect.once else "made again"
    lost = f" · {action}, its worker was lost" if was_lost else ""
    return f"{truncate(call_line(call.tool, call.arguments), MAX_SUMMARY_CALL)} · step {call.step}{again}{lost}"


def fused_summary(batch: Sequence[Call], turn: int) -> str:
    """Summarize reads and the turn after them: `read a.py and 2 more → turn 5`."""
    more = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
    return f"{truncate(call_line(batch[0].tool, batch[0].arguments), MAX_SUMMARY_CALL)}{more} → turn {turn}"


def format_approval(tool: str, arguments: Mapping[str, Any], verdict: PolicyVerdict | None = None) -> str:
    """Return the text of an approval: the call, all of its arguments, and the rule that decided, if one did."""
    text = f"{call_line(tool, arguments)}\n\n{render_arguments(arguments)}"
    if verdict is None or verdict.rule is None:
        return text
    is_allowed = verdict.verdict is Verdict.allow
    who = "The tool's own approval asks. The rule that allows" if is_allowed else "The rule that asks"
    return f"{text}\n\n{who}: {': '.join(filter(None, [verdict.rule, verdict.reason]))}"


def format_doubt(tool: str, arguments: Mapping[str, Any], task: ServerTask | None = None) -> str:
    """Return the question whether a call that may have happened is made again, with all of its arguments."""
    line = call_line(tool, arguments)
    text = f"`{line}` was interrupted and may have happened. Run it again?"
    if task is not None:
        text = f"`{line}` may have happened: {format_task(task)}. Run it again?"
    if not arguments or [*arguments.values()] == [line.removeprefix(f"{tool} ")]:
        return text
    return format_beginning(f"{text}\n\n{render_arguments(arguments)}", MAX_APPROVAL, "perdure trace RUN --export -")


def format_task(task: ServerTask) -> str:
    """Format a task as it was last seen: `task 7f of server bank: working, paying; looked at 12:03 UTC, …`."""
    said = f", {truncate(task.message, 200)}" if task.message else ""
    until = f", expires {_clock(task.expires_at, task.seen_at)}" if task.expires_at else ""
    named = f"task {truncate(task.id, 80)} of server {task.server}: {truncate(task.status, 40)}{said}"
    return f"{named}; looked at {_clock(task.seen_at, task.seen_at)}{until}"


def _clock(at: datetime, since: datetime) -> str:
    """Format a time of day, with its date if that is another one."""
    return f"{at:%H:%M} UTC" if at.date() == since.date() else f"{at:%Y-%m-%d %H:%M} UTC"


def too_large_to_approve(tool: str, arguments: Mapping[str, Any]) -> ToolOutcome | None:
    size = len(format_approval(tool, arguments))
    if size <= MAX_APPROVAL:
        return None
    message = (
        f"not made: a person must approve this call, and as it is shown it has {size:,} characters of {MAX_APPROVAL:,} "
        "at most. Make the arguments shorter, or write what is long to a file and name the file"
    )
    return error_outcome(ToolFault.too_large, message)


def call_line(tool: str, arguments: Mapping[str, Any]) -> str:
    """Format a call as its tool and its most telling argument: `fetch https://…`."""
    added = feature_tools().get(tool)
    if added is not None and added.summary is not None:
        return f"{tool} {truncate(load(added.summary)(arguments), 100)}"
    argument = next((v for v in arguments.values() if isinstance(v, str) and v.strip()), None)
    if argument is None:
        argument = ", ".join(f"{k}={v}" for k, v in arguments.items() if isinstance(v, int | float))
    return f"{tool} {truncate(argument, 100)}".rstrip()


def format_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Format the arguments that differ: `cents: 100 → 900, note: none → "paid"`."""
    values = {name: [_format_value(at, name) for at in (before, after)] for name in {**before, **after}}
    changes = (
        f"{truncate(name, 60)}: {truncate(old, 200)} → {truncate(new, 200)}"
        for name, (old, new) in values.items()
        if old != new
    )
    return truncate(", ".join(changes), MAX_CHANGE)


def _format_value(arguments: Mapping[str, Any], name: str) -> str:
    return json.dumps(arguments[name], ensure_ascii=False) if name in arguments else "none"


def call_trace(key: str, step: int, tool: str, arguments: Mapping[str, Any], outcome: ToolOutcome) -> dict[str, Any]:
    error = outcome.error
    return {
        "key": key,
        "event": "tool",
        "step": step,
        "tool": tool,
        "call": call_line(tool, arguments),
        "status": outcome.status,
        "kind": error.kind if error else None,
        "error": error.message[:500] if error else None,
        "ms": outcome.duration_ms,
    }


def refusal_trace(call: Call) -> dict[str, Any]:
    """Return the `trace.jsonl` entry of a call that was not made."""
    error = call.outcome.error if call.outcome else None
    return {
        "key": f"refused:{call.tool_use_id}",
        "event": "refused",
        "step": call.step,
        "tool": call.tool,
        "call": call_line(call.tool, call.arguments),
        "kind": error.kind if error else None,
        "error": error.message[:500] if error else "",
    }


def waiting_for_person(question: Question) -> str:
    """Return the search attribute `WaitingFor`: "human: approve charge".

    It begins with the question's kind, so that words of a model or a sender cannot pass for an approval.
    """
    row = QUESTIONS[question.kind]
    about = row.waits_for.format(text=question.text, tool=question.tool, groups=_format_groups(question))
    return format_wait(about)


def _format_groups(question: Question) -> str:
    groups = dict.fromkeys(" or ".join(asked_groups(terms)) for terms in unmet_terms(question))
    asked = " and ".join(filter(None, groups))
    return f" ({asked})" if asked else ""


def waiting_for_people(questions: Sequence[Question]) -> str:
    """Return `WaitingFor` with all open questions: "human: 3 questions: approve charge | asks: Which one?"."""
    if len(questions) == 1:
        return waiting_for_person(questions[0])
    waits = (waiting_for_person(question).removeprefix("human: ") for question in questions)
    return format_wait(f"{len(questions)} questions: {QUESTION_SEPARATOR.join(waits)}")


def split_waits(waiting_for: str) -> list[str]:
    """Return the questions in a `WaitingFor`, as `waiting_for_person` names each; a text may be cut, or is empty."""
    listed = re.fullmatch(r"human: (\d+) questions(?:: (.*))?", waiting_for)
    if listed is None:
        return [waiting_for]
    texts = [f"human: {text}" for text in (listed[2] or "").split(QUESTION_SEPARATOR)]
    return [*texts, *[""] * int(listed[1])][: int(listed[1])]


def format_wait(about: str) -> str:
    return truncate(f"human: {about}", 200)


def format_beginning(text: str, limit: int, whole: str) -> str:
    """Return the beginning of a text. If more follows, the result says so, and says where to read all of it."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} …\n({len(text) - limit:,} more characters are not shown; all of it: {whole})"


def run_details(state: RunState) -> str:
    """Render the Web UI's current details, in Markdown, beginning with what needs a person."""
    blocks = [
        *(["**Dry run**: calls that change something are not made"] if state.dry_run else []),
        _format_facts(state),
        *_questions_lines(state),
        f"**Goal** {escape_markdown(truncate(state.goal, 400))}",
        *_pending_blocks(state),
    ]
    if state.batched_at is not None:
        blocks.append(f"**Waits** for a batch of model calls since {state.batched_at:%Y-%m-%d %H:%M:%S} UTC")
    if state.passed_over:
        instead = "; ".join(f"{skipped.model} ({truncate(skipped.why, 200)})" for skipped in state.passed_over)
        blocks.append(f"**Fallback** {escape_markdown(f'{state.model} answered in place of {instead}')}")
    if (ending := state.ending) is not None:
        is_done = ending.status is RunStatus.completed
        title = "Outcome" if is_done else f"{ending.status.capitalize()} ({ending.reason})"
        blocks.append(f"**{title}** {escape_markdown(truncate(ending.text, 1000))}")
    if state.artifacts:
        blocks.append("**Artifacts** " + ", ".join(f"`{truncate(name, 100)}`" for name in state.artifacts[:10]))
    if state.ignored:
        blocks.append(f"**Ignored** {escape_markdown(state.ignored[-1])}")
    if state.last_finding:
        blocks.append(f"**Last finding** {escape_markdown(truncate(state.last_finding.removeprefix('Finding:'), 400))}")
    if state.plan:
        blocks.append(f"**Plan**\n\n{escape_markdown(render_visible(state.plan))}")
    return "\n\n".join(blocks)


def format_unknown_cost(known_usd: float, unpriced: Mapping[str, int]) -> str:
    """Return a cost of which a part is not known: that of `unpriced`, tokens by the model that has no price."""
    models = ", ".join(truncate(model, 60) for model in unpriced)
    if not known_usd:
        return f"USD unknown, {models} without a price in [prices]" if models else "USD unknown"
    return f"USD {known_usd:.4f} and {sum(unpriced.values()):,} tokens of {models} without a price in [prices]"


def _format_facts(state: RunState) -> str:
    facts = [f"**{state.status}**", f"step {state.step} of {state.limits.max_steps}", f"turn {state.turns}"]
    usage, below = state.usage, state.delegated
    cached = f" ({usage.cache_read:,} from the cache)" if usage.cache_read else ""
    estimated = " (estimated)" if usage.is_estimated else ""
    facts.append(f"{usage.total - usage.output:,} tokens in{cached}, {usage.output:,} out{estimated}")
    if state.cost_usd:
        facts.append(f"USD {state.cost_usd:.4f}")
    elif state.cost_usd is None:
        unchecked = "" if state.limits.budget_usd is None else ", which budget_usd does not count"
        facts.append(escape_markdown(f"{format_unknown_cost(state.known_usd, state.unpriced)}{unchecked}"))
    if below != Spent():
        cost = ", USD unknown" if below.usd is None else f", USD {below.usd:.4f}" if below.usd else ""
        facts.append(f"in subtasks {below.steps} steps, {below.tokens:,} tokens{cost}")
    return " · ".join(facts)


def _questions_lines(state: RunState) -> list[str]:
    """Render the open questions: the first ones whole, the others in a line."""
    questions = state.open_questions
    whole, others = questions[:MAX_SHOWN_QUESTIONS], questions[MAX_SHOWN_QUESTIONS:]
    lines = [line for question in whole for line in _question_lines(question, takes_signed=bool(state.answer_keys))]
    count = [f"**{len(questions)} questions wait**, each for an answer of its own"] if len(questions) > 1 else []
    more = [f"- {question.id}: {escape_markdown(waiting_for_person(question))}" for question in others[:20]]
    return [*count, *lines, *(["\n".join(more)] if more else [])]


def _question_lines(question: Question, *, takes_signed: bool) -> list[str]:
    """Render an open question, and the JSON that answers it in the dialog "Send an Update"."""
    by_text = QUESTIONS[question.kind].is_textual
    text = render_visible(question.text)
    if by_text:
        beginning = format_beginning(text, 2000, "perdure show RUN")
        text = "\n".join(f"> {escape_markdown(line)}  " for line in beginning.splitlines())
    else:  # arguments are shown as they are, with no quote made typographic
        text = _indent_code(text)
    options = ", ".join(escape_markdown(truncate(option, 100)) for option in question.options)
    until = f", until {question.expires_at:%Y-%m-%d %H:%M:%S} UTC" if question.expires_at else ""
    heading = f"**Waiting for a person: {QUESTIONS[question.kind].title}**, question {question.id}{until}:"
    if takes_signed:
        return [heading, text, "Only signed answers are taken, and not from here; see `perdure show RUN`"]
    is_free = question.kind is QuestionKind.question
    choice = f", {'suggested' if is_free else 'one of'}: {options}" if options else ""
    # No decision is suggested: the text shown here is sent unchanged.
    chosen = {"text": (*question.options, "…")[0] if is_free else "…"} if by_text else {"decision": "…"}
    about = {"call": question.call} if question.call else {}
    body = {"question_id": question.id, **about, **chosen}
    instruction = f"Answer with More Actions → Send an Update → `answer`{choice}"
    return [heading, text, instruction, _indent_code(json.dumps(body, ensure_ascii=False))]


def _pending_blocks(state: RunState) -> list[str]:
    """Render the pending calls, by this worker and outside. A call that awaits an answer is shown as the question."""
    if not state.pending:
        return []
    asked = {question.step for question in state.open_questions}
    steps = {action.step for action in state.pending}
    lines = {call.step: call_line(call.tool, call.arguments) for call in state.calls if call.step in steps}
    tasks = state.open_tasks
    running: list[str] = []
    outside: list[str] = []
    for action in state.pending:
        again = f", attempt {action.attempt}" if action.attempt > 1 else ""
        since = f"since {action.since:%H:%M:%S} UTC"
        call = escape_markdown(truncate(lines.get(action.step, action.tool), 110))
        task = tasks.get(action.step)
        about = f"; {escape_markdown(format_task(task))}" if task else ""
        if action.step not in asked:
            (outside if action.outside or task else running).append(
                f"- step {action.step}: {call}, {since}{again}{about}"
            )
    blocks = (("Running", running), ("Waiting for results from outside", outside))
    return [f"**{title}**\n\n" + "\n".join(actions[:8]) for title, actions in blocks if actions]


def escape_markdown(text: str) -> str:
    """Escape `$`, `<` and `[`, which begin a formula, a tag or a link. Backslashes before them are doubled."""
    return re.sub(r"(\\*)([$<\[])", r"\1\1\\\2", text)


def _indent_code(text: str) -> str:
    """Render the text unchanged. It is indented, because the text could close a fence."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def state_view(state: RunState) -> RunView:
    """Return the answer of the query `state` (A8). Fields that are not named here are the state's own."""
    open_steps = {p.step for p in state.pending} | {c.step for c in state.calls if c.outcome is None}
    questions = tuple(question_view(state, question) for question in state.open_questions)
    is_over = state.ending is not None or state.status is RunStatus.cancelled
    at = f"step {state.pending[0].step}" if state.pending else f"turn {state.turns + 1}"
    changed = {
        "max_steps": state.limits.max_steps,
        "max_reframes": state.limits.max_reframes,
        "pending": tuple(_pending_view(state, pending) for pending in state.pending),
        "completed_steps": tuple(s for s in range(1, state.step + 1) if s not in open_steps),
        "resumable": not is_over,
        "resume_from": None if is_over else at,
        "question": next(iter(questions), None),
        "questions": questions,
        "active_seconds": state.active_ms / 1000,
        "origin": state.inherited[-1].run_id if state.inherited else None,
        "parent": state.assignment.by if state.assignment else None,
        "result": state.ending.result if state.ending else NO_RESULT,
        "delegated": None if state.delegated == Spent() else state.delegated,
    }
    shared = {name: getattr(state, name) for name in RunView.model_fields if name in RunState.model_fields}
    return RunView(**{**shared, **changed})


def question_view(state: RunState, question: Question) -> QuestionView:
    """Return an open question as people see it."""
    call = next((c for c in state.calls if question.call and c.step == question.step), None)
    shown = question.model_dump(include=set(QuestionView.model_fields) - {"terms"})
    return QuestionView(
        **shown,
        group=question.group,
        arguments=call.arguments if call else None,
        terms=tuple(_terms_view(state, terms) for terms in question.terms),
    )


def _terms_view(state: RunState, terms: AskedTerms) -> TermsView:
    return TermsView(
        approvers=asked_groups(terms),
        quorum=terms.quorum,
        approved_by=terms.approved_by,
        not_by=requesters_of(state) if terms.not_requester else (),
    )


def _pending_view(state: RunState, pending: Pending) -> PendingView:
    shown = pending.model_dump(include={"step", "tool", "since", "attempt"})
    task = state.open_tasks.get(pending.step)
    return PendingView(**shown, nonce=readable_nonce(state, pending), task=format_task(task) if task else "")


def run_figures(state: RunState) -> dict[str, Any]:
    return {
        "steps": state.step,
        "turns": state.turns,
        "tokens": state.usage.total,
        "cost_usd": state.cost_usd,
        "active_seconds": state.active_ms / 1000,
        "reason": state.ending.reason if state.ending else None,
    }


MAX_PLAN_ITEMS = 30  # items
_LISTED = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.):])\s+(?:\[[ xX]\]\s*)?(.+)$")
_INLINE = re.compile(r"(?:^|(?<=[\s;,]))\(?(\d{1,2})[.)]\s+")
_MARK = r"^\s*(?:[-*•]\s*)?(?:\[x\]|[✓✔☑✅]️?|done:)\s*"
_TICKED = re.compile(_MARK + r"(?:(?:(?:plan\s+)?item\s+)?(\d{1,2})\s*(?:[.):].*)?|(.+))$", re.IGNORECASE)
_SAID = re.compile(r"^\W*plan\s+(?:item|step)\s+(\d{1,2})\W+(?:is\s+)?(?:done|completed)[.!]?$", re.IGNORECASE)


def plan_items(plan: str) -> tuple[str, ...]:
    """Return the items: of the plan's list; else of numbers in its first line; else the whole plan as one item."""
    lines = [line for line in plan.splitlines() if line.strip()]
    listed = tuple(match[1].strip() for line in lines if (match := _LISTED.match(line)))
    if len(listed) > 1:
        return listed[:MAX_PLAN_ITEMS]
    pieces = _INLINE.split(" ".join(lines))
    if pieces[1::2][:2] == ["1", "2"]:
        return tuple(piece.strip(" ;,") for piece in pieces[2::2])[:MAX_PLAN_ITEMS]
    return listed or ((" ".join(plan.split()),) if lines else ())


def ticked_items(plan: tuple[str, ...], journal: Journal) -> frozenset[int]:
    """Return the numbers, from 1, of the items that the journal ticks.

    A tick is "[x] 2. …", "✓ 2", "done: <the item>" or "plan item 2 done". Steps are not items: "step 2 done" may refer
    to a tool call.
    """
    texts = (journal.current_state, *journal.verified_findings, *journal.decisions)
    by_text = {_normalize_item(item): number for number, item in enumerate(plan, 1)}
    ticked: set[int] = set()
    for line in (line.strip() for text in texts for line in text.splitlines()):
        if match := _TICKED.match(line) or _SAID.match(line):
            number, text = (*match.groups(), None)[:2]
            ticked.add(int(number) if number else by_text.get(_normalize_item(text or ""), 0))
    return frozenset(ticked & set(range(1, len(plan) + 1)))


def _normalize_item(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".;,")
