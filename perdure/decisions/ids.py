"""Every id and dedupe key, made in one place."""

import json
import re
from collections.abc import Mapping
from hashlib import blake2b, sha256
from typing import Any
from urllib.parse import quote

CallArguments = Mapping[str, Any]
RESUMED_MARK = ".r"
RUN_PREFIX = "run:"
FOLLOW_UP_PREFIX = "wf:"
QUESTION_PREFIX = "question:"
ADDRESSED_PREFIXES = (FOLLOW_UP_PREFIX, QUESTION_PREFIX)  # of workflows that are no runs, and that people name
CONVERSATION_PREFIX = "conversation:"
SCHEDULE_PREFIX = "schedule:"
NOTICE_PREFIX = "notice:"
INBOUND_PREFIX = "start:"
PUSH_PREFIX = "push:"
UPLOADS_STORE = "files:uploads"  # the store of uploaded files; no id of a run
GRANTS_STORE = "mcp:grants"  # the store of OAuth grants, and of logins; no id of a run
GATEWAY_STORE = "gateway:keys"  # the store of the key that signs sessions of the page; no id of a run
_DELEGATION = "/delegation:"
_AGAIN = re.compile(r"~[0-9a-f]{12}$")  # the end of a `key_id`
MAX_AGENT_NAME = 160  # characters of an agent's name in a conversation's id, which may have 200
MAX_TOPIC_KEY = 400  # characters of a topic's key; a longer one is replaced by its digest
MAX_WORKFLOW_ID_BYTES = 1000  # bytes that the server accepts
MAX_PLAIN_ID = 800  # bytes of a run id that is composed of others


def run_workflow_id(run_id: str) -> str:
    return RUN_PREFIX + run_id


def run_id_of_workflow(workflow_id: str) -> str:
    """Return the id after `run:`; a workflow started under another id is its own run id."""
    return workflow_id.removeprefix(RUN_PREFIX)


def addressed_workflow_id(named: str) -> str:
    """Return the id of the workflow that a person names: a run by its id, others with one of `ADDRESSED_PREFIXES`."""
    return named if named.startswith(ADDRESSED_PREFIXES) else run_workflow_id(run_id_of_workflow(named))


def run_start_id(first_execution: str, continued: str | None, *, is_retry: bool) -> str:
    """Identify the start of a run: its first Temporal execution, except for a later tick of a cron workflow.

    All ticks have one first execution, but each continues another one. A retry by Temporal is the same run again.
    """
    return first_execution if continued is None or is_retry else digest_names("tick", continued, size=6)


def key_id(run_id: str, start: str) -> str:
    """Return the id that replaces `run_id` in keys and ids if an earlier run had that id: unique over time."""
    return f"{run_id}~{digest_names(start, size=6)}"


def conversation_workflow_id(conversation_id: str) -> str:
    """Return the id of a lane, and of the store that the conversation's turns share."""
    return CONVERSATION_PREFIX + conversation_id


def conversation_id_of(workflow_id: str) -> str:
    return workflow_id.removeprefix("conversation:")


def turn_run_id(conversation_id: str, request_id: str) -> str:
    """Return the run id of a request's turn. A repeated request finds its run, even if its lane has forgotten it."""
    return "c-" + digest_names(conversation_id, request_id)


def follow_up_workflow_id(workflow_id: str) -> str:
    """Return the id of a FollowUp, and of its store. `workflow_id` is the source's `workflowId`."""
    return FOLLOW_UP_PREFIX + workflow_id


def run_schedule_id(name: str) -> str:
    """Return the id of Temporal's schedule that starts runs `<name>-<time>`."""
    return SCHEDULE_PREFIX + name


def follow_up_id(run_id: str, step: int) -> str:
    """Return the id of the follow-up that a run creates in a step: the same on every attempt."""
    return "f-" + digest_names("follow-up", run_id, str(step), size=6)


def task_id(run_id: str, step: int) -> str:
    return "t-" + digest_names("task", run_id, str(step), size=6)


def resume_request_id(workflow_id: str, seq: int) -> str:
    """Return the id of the request by which a follow-up resumes the work; never of the form `discord:…` (E6)."""
    return f"wf:{workflow_id}:{seq}"


def notify_key(workflow_id: str, task: str) -> str:
    return f"workflow:{workflow_id}:task:{task}:notify"


def shared_calls_id(root: str) -> str:
    """Return the workflow id of the calls of a request, which began with the run `root`."""
    return f"calls:{root}"


def topic_key(platform: str, channel: str, message: str) -> str:
    key = ":".join(quote(part, safe="", errors="surrogatepass") for part in (platform, channel, message))
    return key if len(key) <= MAX_TOPIC_KEY else digest_names(key, size=16)


def topic_workflow_id(key: str) -> str:
    return f"topic:{key}"


def delegation_workflow_id(run_id: str, step: int) -> str:
    """Return the id of a step's delegation. A step delegates once, so a repeat finds the same one.

    A run that another client started under a long id is replaced by a placeholder: an id that is too long would leave
    the run stuck.
    """
    plain = f"{run_workflow_id(run_id)}{_DELEGATION}{step}"
    owner = run_id if _byte_length(plain) <= MAX_WORKFLOW_ID_BYTES else placeholder_id(run_id)
    return f"{run_workflow_id(owner)}{_DELEGATION}{step}"


def notice_workflow_id(run_id: str, kind: str, question: str | None = None) -> str:
    """Return the id of the workflow that delivers a notice: one for each event of a run."""
    plain = f"{NOTICE_PREFIX}{run_id}"
    owner = run_id if _byte_length(plain) <= MAX_PLAIN_ID else placeholder_id(run_id)
    return ":".join(part for part in (f"{NOTICE_PREFIX}{owner}", question, kind) if part)


def push_workflow_id(run_id: str, push: str) -> str:
    """Return the id of the workflow that sends a run's states to one address; without a `push`, their beginning."""
    return f"{PUSH_PREFIX}{run_id}:{digest_names(push) if push else ''}"


def inbound_workflow_id(start: str, event: str) -> str:
    """Return the id of the workflow of an event: a repeat begins nothing."""
    return f"{INBOUND_PREFIX}{start}:{digest_names(event)}"


def delegating_run_id(workflow_id: str) -> str | None:
    """Return the run that made this delegation, or its placeholder. Other workflows have no such run."""
    owner, mark, _ = workflow_id.rpartition(_DELEGATION)
    return _AGAIN.sub("", run_id_of_workflow(owner)) if mark else None


def subtask_run_id(run_id: str, step: int, subtask: str) -> str:
    """Return a readable id, unless the server would reject it: the delegation would be stuck."""
    plain = f"{run_id}.{step}-{subtask}"
    return plain if _byte_length(plain) <= MAX_PLAIN_ID else placeholder_id(plain)


def placeholder_id(run_id: str) -> str:
    """Return the replacement for a run id that is too long."""
    return "d-" + digest_names(run_id)


def _byte_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def run_id_for(dedupe_key: str) -> str:
    """Return the run id of a dedupe key: two starts with one key find the same run (A10)."""
    return "k-" + digest_names(dedupe_key)


def run_id_for_caller(caller: str, key: str) -> str:
    """Return the run id of a caller's key. No dedupe key and no other caller finds the same run."""
    named = f"{caller}\0{key}".encode("utf-8", "surrogatepass")
    return "k-" + blake2b(named, digest_size=10, person=b"caller").hexdigest()


def chat_conversation_id(caller: str, chat: str) -> str:
    """Return the conversation of a caller's chat at the doors of front ends. No other caller or door has it."""
    named = f"{caller}\0{chat}".encode("utf-8", "surrogatepass")
    return "ui-" + blake2b(named, digest_size=10, person=b"chat").hexdigest()


def task_contexts_prefix(caller: str, agent: str) -> str:
    """Return the start of the conversations of a caller's A2A contexts with an agent; no others begin like it."""
    named = f"{caller}\0{agent}".encode("utf-8", "surrogatepass")
    return "a2a-" + blake2b(named, digest_size=10, person=b"contexts").hexdigest() + "-"


def digest(data: bytes, size: int) -> str:
    """Return the blake2b hash of `size` bytes, in hex."""
    return blake2b(data, digest_size=size).hexdigest()


def json_digest(value: Any) -> str:
    """Return a digest of a JSON value, independent of the order of its keys."""
    return "sha256:" + sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def resumed_id(run_id: str) -> str:
    """Return the id of the run that resumes this one: "a", "a.r2", "a.r3". Resuming twice finds the same run."""
    stem, number = _split_lineage(run_id)
    return f"{stem}{RESUMED_MARK}{number + 1}"


def successors_prefix(run_id: str) -> str:
    """Return the prefix of the ids of all runs that resume this run, or the run that it resumes."""
    return f"{_split_lineage(run_id)[0]}{RESUMED_MARK}"


def _split_lineage(run_id: str) -> tuple[str, int]:
    stem, mark, number = run_id.rpartition(RESUMED_MARK)
    return (stem, int(number)) if mark and number.isdecimal() else (run_id, 1)


def start_key(request_id: str) -> str:
    return f"agentic:start:{request_id}"


def request_key(run_id: str, step: int, attempt: int = 1) -> str:
    """Return the idempotency key of a tool call. A person's `run_again` opens a new generation of it."""
    key = f"agentic:run:{run_id}:step:{step}:request"
    return key if attempt == 1 else f"{key}:{attempt}"


def request_nonce(secret: str, key: str) -> str:
    """Return the nonce that a result must carry. It cannot be guessed without the run's secret."""
    return blake2b(key.encode("utf-8", "surrogatepass"), key=secret.encode(), digest_size=16).hexdigest()


def generation_of(key: str) -> int:
    """Return a request key's generation, which a person's "run again" increments."""
    last = key.rpartition(":")[2]
    return int(last) if last.isdecimal() else 1


def result_key(run_id: str, step: int, attempt: int = 1) -> str:
    key = f"agentic:run:{run_id}:step:{step}:result"
    return key if attempt == 1 else f"{key}:{attempt}"


def trace_id(namespace: str, workflow_id: str) -> str:
    """Return the trace id of a run, 32 hex digits: the same in every execution of it, on every worker.

    It depends on the namespace: several installations may report to one place, and their run ids may be equal.
    """
    return digest_names("trace", namespace, workflow_id, size=16)


def root_span_id(namespace: str, workflow_id: str) -> str:
    """Return the id of a run's root span, 16 hex digits: known before that span is made, at the end."""
    return digest_names("span", namespace, workflow_id, size=8)


def call_digest(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a digest of the call, 24 hex digits, independent of the order of its arguments."""
    return digest(json.dumps([tool, arguments], sort_keys=True, separators=(",", ":")).encode(), 12)


def approval_digest(run: tuple[str, str], question: str, step: int | None, tool: str, arguments: CallArguments) -> str:
    """Return the id of the call that an approval is for, 24 hex digits: at another step the same call has another id.

    `run` is its id and its first Temporal execution, since an id may be reused.
    """
    canonical = json.dumps([*run, question, step, tool, arguments], sort_keys=True, separators=(",", ":"))
    return digest(canonical.encode(), 12)


def question_id(number: int) -> str:
    return f"q{number}"


def mail_queue(agent: str) -> str:
    """Return the task queue on which the bridges of an agent that lives outside get subtasks for it."""
    return f"mail:{agent}"


def message_key(message_id: str, sha256: str) -> str:
    """Return the key of a message: its id and its content, since ids get reused (C2)."""
    return digest_names("letter", message_id, sha256)


def task_key(plan_id: str, task_id: str, subtask_id: str | None) -> str:
    return digest_names("task", plan_id, task_id, subtask_id or "")


def mail_conversation_id(agent: str, task: str) -> str:
    """Return the lane of a task that arrived by mail. `task` is its `task_key`."""
    return f"mail:{agent if len(agent) <= MAX_AGENT_NAME else digest_names(agent)}:{task}"


def mail_request_id(key: str, attempt: int) -> str:
    """Return the id of the request by which a message enters its lane: the same on every attempt."""
    return f"mail:{key}:{attempt}"


def delegated_task_id(run_id: str, step: int) -> str:
    """Return the id of the task whose subtasks a step delegates, as peers see it."""
    return f"{run_id}.{step}"


def digest_names(*names: str, size: int = 10) -> str:
    """Return a digest of `size` bytes, in hex digits."""
    return digest("\0".join(names).encode("utf-8", "surrogatepass"), size)


def query_equals(attribute: str, value: str) -> str:
    """Format the query that the attribute equals the value, or begins like it if the value cannot be quoted."""
    return f"{attribute} = '{value}'" if _quotable_part(value) == value else query_begins(attribute, value)


def query_differs(attribute: str, value: str) -> str:
    """Format the query that the attribute differs from the value, or is set if the value cannot be quoted."""
    return f"{attribute} != '{value}'" if _quotable_part(value) == value else f"{attribute} IS NOT NULL"


def query_begins(attribute: str, prefix: str) -> str:
    return f"{attribute} STARTS_WITH '{_quotable_part(prefix)}'"


def _quotable_part(text: str) -> str:
    return re.split(r"""["'\\]""", text, maxsplit=1)[0]


def platform_name(name: str) -> str:
    """Normalize a platform's name: models tend to write "Slack"."""
    return name.strip().lower() or name
