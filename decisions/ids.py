"""Every id and dedupe key, made in one place."""

import json
import re
from collections.abc import Mapping
from hashlib import blake2b, sha256
from typing import Any
from urllib.parse import quote

Arguments = Mapping[str, Any]
RESUMED = ".r"
RUN = "run:"
FOLLOW_UP = "wf:"
SCHEDULE = "schedule:"
_DELEGATION = "/delegation:"
_AGAIN = re.compile(r"~[0-9a-f]{12}$")  # of a `key_id`
MOST_AGENT = 160  # characters of an agent's name in the id of a conversation, which has 200
MOST_KEY = 400  # characters of a topic's key; a longer one is its digest
MOST_WORKFLOW_ID = 1000  # bytes that the server takes
MOST_PLAIN = 800  # bytes of a run id that is made of others


def run_workflow_id(run_id: str) -> str:
    return RUN + run_id


def run_id_of(workflow_id: str) -> str:
    """The id after `run:`; a workflow started under another id is its own run id."""
    return workflow_id.removeprefix(RUN)


def addressed(named: str) -> str:
    """The workflow that a person names: a run by its id, a follow-up as `wf:<workflowId>`."""
    return named if named.startswith(FOLLOW_UP) else run_workflow_id(run_id_of(named))


def start_of(first_execution: str, continued: str | None, *, is_retry: bool) -> str:
    """Identify the start of a run: its first Temporal execution, except for a later tick of a cron workflow.

    All ticks have one first execution, but each continues another one. A retry by Temporal is the same run again.
    """
    return first_execution if continued is None or is_retry else _start_digest(continued)


def _start_digest(continued: str) -> str:
    return blake2b(f"tick\0{continued}".encode(), digest_size=6).hexdigest()


def key_id(run_id: str, start: str) -> str:
    """Make the id that stands for `run_id` in keys and ids where an earlier run had that id: unique over time."""
    return f"{run_id}~{blake2b(start.encode(), digest_size=6).hexdigest()}"


def without_start(key_id: str) -> str:
    """Return the run id that a `key_id` was made of; a plain run id as it is."""
    return _AGAIN.sub("", key_id)


def conversation_workflow_id(conversation_id: str) -> str:
    """Also the id of the store that the turns of this conversation share."""
    return f"conversation:{conversation_id}"


def conversation_id_of(workflow_id: str) -> str:
    return workflow_id.removeprefix("conversation:")


def turn_run_id(conversation_id: str, request_id: str) -> str:
    """A request that comes again finds its run again, also after its lane has forgotten it."""
    named = f"{conversation_id}\0{request_id}".encode("utf-8", "surrogatepass")
    return "c-" + blake2b(named, digest_size=10).hexdigest()


def follow_up_workflow_id(workflow_id: str) -> str:
    """Of a FollowUp, whose own `workflowId` is the source's name for it. Also the id of its store."""
    return FOLLOW_UP + workflow_id


def schedule_id(name: str) -> str:
    """Of Temporal's schedule that starts runs `<name>-<time>`."""
    return SCHEDULE + name


def follow_up_id(run_id: str, step: int) -> str:
    """Of the follow-up that a run creates in a step: the same however often the step is made."""
    return "f-" + _short("follow-up", run_id, step)


def task_id(run_id: str, step: int) -> str:
    return "t-" + _short("task", run_id, step)


def _short(what: str, run_id: str, step: int) -> str:
    named = f"{what}\0{run_id}\0{step}".encode("utf-8", "surrogatepass")
    return blake2b(named, digest_size=6).hexdigest()


def resume_request_id(workflow_id: str, seq: int) -> str:
    """Of the request by which a follow-up resumes the work; never of the form `discord:…` (E6)."""
    return f"wf:{workflow_id}:{seq}"


def notify_key(workflow_id: str, task: str) -> str:
    """The idempotency key of an outbound message."""
    return f"workflow:{workflow_id}:task:{task}:notify"


def topic_key(platform: str, channel: str, message: str) -> str:
    """Of the place where replies to a message, and who waits for them, meet."""
    key = ":".join(quote(part, safe="", errors="surrogatepass") for part in (platform, channel, message))
    return key if len(key) <= MOST_KEY else blake2b(key.encode(), digest_size=16).hexdigest()


def topic_workflow_id(key: str) -> str:
    return f"topic:{key}"


def delegation_workflow_id(run_id: str, step: int) -> str:
    """A step delegates once: whoever comes to it again finds the same delegation.

    A run that was started under a long id, as only another client can, has its `stand_in` there: an id that is too
    long would leave the run stuck.
    """
    plain = f"{run_workflow_id(run_id)}{_DELEGATION}{step}"
    return plain if _bytes(plain) <= MOST_WORKFLOW_ID else f"{run_workflow_id(stand_in(run_id))}{_DELEGATION}{step}"


def delegating_run_id(workflow_id: str) -> str | None:
    """The run that made this delegation, or its `stand_in`; None of another workflow."""
    owner, mark, _ = workflow_id.rpartition(_DELEGATION)
    return without_start(run_id_of(owner)) if mark else None


def subtask_run_id(run_id: str, step: int, subtask: str) -> str:
    """Readable, as long as the server takes it: an id that is too long would leave the delegation stuck."""
    plain = f"{run_id}.{step}-{subtask}"
    return plain if _bytes(plain) <= MOST_PLAIN else stand_in(plain)


def stand_in(run_id: str) -> str:
    """What stands for a run id that is too long."""
    return "d-" + _digest(run_id)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def run_id_for(dedupe_key: str) -> str:
    """Two starts with one dedupe key find the same run (A10)."""
    return "k-" + blake2b(dedupe_key.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def run_id_for_caller(caller: str, key: str) -> str:
    """Two starts of one caller with one key find the same run; no dedupe key and no other caller finds it."""
    named = f"{caller}\0{key}".encode("utf-8", "surrogatepass")
    return "k-" + blake2b(named, digest_size=10, person=b"caller").hexdigest()


def start_digest(payload: Mapping[str, Any]) -> str:
    """Return a digest of what a start says; the order of its keys does not count."""
    return "sha256:" + sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:24]


def resumed_id(run_id: str) -> str:
    """The run that resumes this one: "a", "a.r2", "a.r3". Resuming twice finds the same run."""
    stem, number = _lineage(run_id)
    return f"{stem}{RESUMED}{number + 1}"


def heirs_prefix(run_id: str) -> str:
    """What the ids begin with of all runs that resume this one, or what it resumes."""
    return f"{_lineage(run_id)[0]}{RESUMED}"


def _lineage(run_id: str) -> tuple[str, int]:
    stem, mark, number = run_id.rpartition(RESUMED)
    return (stem, int(number)) if mark and number.isdecimal() else (run_id, 1)


def start_key(request_id: str) -> str:
    return f"agentic:start:{request_id}"


def request_key(run_id: str, step: int, attempt: int = 1) -> str:
    """The idempotency key of a tool call. A person's `run_again` opens a new generation of it."""
    key = f"agentic:run:{run_id}:step:{step}:request"
    return key if attempt == 1 else f"{key}:{attempt}"


def request_nonce(secret: str, key: str) -> str:
    """What the result of a request must bring back. It cannot be guessed without the run's secret."""
    return blake2b(key.encode("utf-8", "surrogatepass"), key=secret.encode(), digest_size=16).hexdigest()


def generation_of(key: str) -> int:
    """Of a request key: which attempt it is, by a person's "run again"."""
    last = key.rpartition(":")[2]
    return int(last) if last.isdecimal() else 1


def result_key(run_id: str, step: int, attempt: int = 1) -> str:
    key = f"agentic:run:{run_id}:step:{step}:result"
    return key if attempt == 1 else f"{key}:{attempt}"


def trace_id(namespace: str, workflow_id: str) -> str:
    """Of all that is told of a run, 32 hex digits: the same in every execution of it, on every worker.

    The namespace belongs to it: what several installations tell goes to one place, and their run ids may be alike.
    """
    return _hex("trace", namespace, workflow_id, 16)


def root_span_id(namespace: str, workflow_id: str) -> str:
    """Of the span that is the whole run, 16 hex digits: known before that span is made, at the end."""
    return _hex("span", namespace, workflow_id, 8)


def _hex(what: str, namespace: str, workflow_id: str, digest_size: int) -> str:
    named = f"{what}\0{namespace}\0{workflow_id}".encode("utf-8", "surrogatepass")
    return blake2b(named, digest_size=digest_size).hexdigest()


def call_digest(tool: str, arguments: Mapping[str, Any]) -> str:
    """What exactly is called, in 24 hex digits; the order of the arguments does not count."""
    canonical = json.dumps([tool, arguments], sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=12).hexdigest()


def approval_digest(run: tuple[str, str], question: str, step: int | None, tool: str, arguments: Arguments) -> str:
    """The call that an approval is asked for, in 24 hex digits: the same call at another step is another one.

    `run` is its id and its first Temporal execution, since an id may be used again.
    """
    canonical = json.dumps([*run, question, step, tool, arguments], sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=12).hexdigest()


def question_id(number: int) -> str:
    return f"q{number}"


def mailbox_workflow_id(agent: str) -> str:
    return f"mailbox:{agent}"


def mail_queue(folder: str) -> str:
    """The task queue on which the bridges of a folder take their orders."""
    return f"mail:{folder}"


def letter_key(message_id: str, sha256: str) -> str:
    """A message is known by its id and its content: ids get reused (C2)."""
    return _digest("letter", message_id, sha256)


def task_key(plan_id: str, task_id: str, subtask_id: str | None) -> str:
    return _digest("task", plan_id, task_id, subtask_id or "")


def mail_conversation_id(agent: str, task: str) -> str:
    """The lane of a task that came by mail. `task` is its `task_key`."""
    return f"mail:{agent if len(agent) <= MOST_AGENT else _digest(agent)}:{task}"


def mail_request_id(key: str, attempt: int) -> str:
    """Of the request by which a letter enters its lane: the same however often it is taken."""
    return f"mail:{key}:{attempt}"


def delegated_task_id(run_id: str, step: int) -> str:
    """The task of which the subtasks of this step are a part, as peers are told."""
    return f"{run_id}.{step}"


def _digest(*named: str) -> str:
    return blake2b("\0".join(named).encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def named(attribute: str, value: str) -> str:
    """That the attribute has this value, or one that begins like it."""
    return f"{attribute} = '{value}'" if _asked(value) == value else begins(attribute, value)


def unlike(attribute: str, value: str) -> str:
    """That it has another one, or any."""
    return f"{attribute} != '{value}'" if _asked(value) == value else f"{attribute} IS NOT NULL"


def begins(attribute: str, prefix: str) -> str:
    return f"{attribute} STARTS_WITH '{_asked(prefix)}'"


def _asked(text: str) -> str:
    return re.split(r"""["'\\]""", text, maxsplit=1)[0]
