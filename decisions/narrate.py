"""What a person reads of a run: summaries in the timeline, current details, the `state` view."""

from collections.abc import Mapping
from typing import Any

from contracts.question import Question
from contracts.run import Call, PendingView, QuestionView, RunState, RunStatus, RunView
from decisions.builtins import ASK_HUMAN


def cut(text: str, length: int) -> str:
    """One line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def turn_summary(state: RunState) -> str:
    return f"turn {state.turns + 1} · {cut(state.model, 40)}"


def call_summary(call: Call, attempt: int = 1) -> str:
    again = f" · attempt {attempt}" if attempt > 1 else ""
    return f"{cut(call_line(call.tool, call.arguments), 110)} · step {call.step}{again}"


def call_line(tool: str, arguments: Mapping[str, Any]) -> str:
    """`fetch https://…`: the tool and its most telling argument."""
    told = next((v for v in arguments.values() if isinstance(v, str) and v.strip()), None)
    if told is None:
        told = ", ".join(f"{k}={v}" for k, v in arguments.items() if isinstance(v, int | float))
    return f"{tool} {cut(told, 100)}".rstrip()


def waiting_for(question: Question) -> str:
    """The search attribute `WaitingFor`: "human: approve charge"."""
    about = question.text if question.tool in (None, ASK_HUMAN) else f"{question.kind} {question.tool}"
    return cut(f"human: {about}", 200)


def details(state: RunState) -> str:
    """The Web UI's current details, in Markdown. `$` starts a formula there, so money is in "USD"."""
    facts = [f"**{state.status}**", f"step {state.step} of {state.limits.max_steps}", f"turn {state.turns}"]
    facts.append(f"{state.usage.input + state.usage.cache_read} → {state.usage.output} tokens")
    if state.cost_usd:
        facts.append(f"USD {state.cost_usd:.4f}")
    blocks = [f"**Goal** {cut(state.goal, 400)}", " · ".join(facts)]
    if state.question is not None:
        blocks.append(f"**Waiting for a person** ({state.question.id}) {cut(state.question.text, 600)}")
    if state.pending:
        blocks.append("**Running** " + ", ".join(f"{p.tool} (step {p.step})" for p in state.pending[:5]))
    if state.plan:
        blocks.append(f"**Plan**\n\n{state.plan}")
    if state.last_finding:
        blocks.append(f"**Last finding** {cut(state.last_finding, 400)}")
    if state.ending is not None:
        blocks.append(f"**Outcome** {cut(state.ending.text, 400)}")
    return "\n\n".join(blocks).replace("$", "\\$")


def view(state: RunState) -> RunView:
    """What the query `state` answers (A8)."""
    open_steps = {p.step for p in state.pending} | {c.step for c in state.calls if c.outcome is None}
    question = state.question
    is_over = state.ending is not None or state.status is RunStatus.cancelled
    return RunView(
        run_id=state.run_id,
        status=state.status,
        goal=state.goal,
        agent=state.agent,
        model=state.model,
        created_at=state.created_at,
        updated_at=state.updated_at,
        step=state.step,
        max_steps=state.limits.max_steps,
        turns=state.turns,
        reframes=state.reframes,
        max_reframes=state.limits.max_reframes,
        pending=tuple(PendingView(step=p.step, tool=p.tool, since=p.since, attempt=p.attempt) for p in state.pending),
        completed_steps=tuple(s for s in range(1, state.step + 1) if s not in open_steps),
        workspace=state.workspace,
        resumable=not is_over,
        resume_from=None if is_over else _resume_point(state),
        artifacts=state.artifacts,
        question=None
        if question is None
        else QuestionView(id=question.id, kind=question.kind, text=question.text, options=question.options),
        usage=state.usage,
        cost_usd=state.cost_usd,
        ignored=state.ignored,
    )


def _resume_point(state: RunState) -> str:
    if state.pending:
        return f"step {state.pending[0].step}"
    return f"turn {state.turns + 1}"
