import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.storage.workspace import folder_name
from perdure.features.mailbox.activities.message import (
    MAX_ENVELOPE,
    MessageError,
    format_message,
    parse_message,
    read_envelope,
)
from perdure.features.mailbox.contract import (
    MAX_MESSAGE_BYTES,
    InputWanted,
    PickPolicy,
    ReplyHead,
    ReplyStatus,
    TaskHead,
)

HEAD = "type: task\nmessage_id: m-1\nplan_id: p\ntask_id: t\nfrom: planner\n"


def task(more: str = "", body: str = "Write a summary.\n", head: str = HEAD) -> bytes:
    return f"---\n{head}{more}---\n{body}".encode()


def as_json(**more: Any) -> bytes:
    fields = {"type": "task", "message_id": "m", "plan_id": "p", "task_id": "t", "from": "a", "body": "do it"}
    return json.dumps(fields | more).encode()


def test_a_task_is_read_with_its_inputs() -> None:
    more = "inputs:\n  - {name: data, match: '*.csv'}\npick_policy: latest\nwait_for_inputs: false\n"
    head, body = parse_message(task(more), "p")
    assert isinstance(head, TaskHead)
    assert (head.message_id, head.sender, head.inputs) == ("m-1", "planner", (InputWanted(name="data", match="*.csv"),))
    assert (head.pick_policy, head.wait_for_inputs, body) == (PickPolicy.latest, False, "Write a summary.\n")


def test_scalars_are_the_text_that_stands_there() -> None:
    head, _ = parse_message(
        task("subtask_id: 2026-01-01\nto: yes\n", head=HEAD.replace("task_id: t", "task_id: 042")), "p"
    )
    assert (head.task_id, head.subtask_id, head.to) == ("042", "2026-01-01", "yes")


@pytest.mark.parametrize("nothing", ["", "~", "null"])
def test_a_field_without_a_value_is_not_there(nothing: str) -> None:
    assert parse_message(task(f"subtask_id: {nothing}\n"), "p")[0].subtask_id is None


def test_json_and_markdown_say_the_same() -> None:
    assert parse_message(as_json(), "p")[0].evolve(message_id="m-1", sender="planner") == parse_message(task(), "p")[0]


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault() -> None:
    head, body = parse_message(b"\xef\xbb\xbf" + task().replace(b"\n", b"\r\n"), "p")
    assert (head.message_id, body) == ("m-1", "Write a summary.\r\n")


def test_the_folder_is_the_plan_or_its_coded_name() -> None:
    data = as_json(plan_id="a/b")
    assert parse_message(data, folder_name("a/b"))[0].plan_id == "a/b"
    with pytest.raises(MessageError, match="plan_id: expected 'b'"):
        parse_message(data, "b")


BOMB = "a: &a [x]\nb: [*a, *a]\n"

MALFORMED = [
    (b"", "the file is empty"),
    (b"\xef\xbb\xbf \n", "the file is empty"),
    (b"\xff\xfe---", "not UTF-8"),
    (b"hello", "expected front matter"),
    (b"---\ntype: task\n", "expected front matter"),
    (b"---\n---\nbody", "expected fields"),
    (b"---\n- a\n---\nbody", "expected fields"),
    (b"---\n[" * 1 + b"[" * 4000 + b"\n---\nbody", "nested too deep"),
    (b"---\na: 'x\n---\nbody", "not valid YAML"),
    (task(BOMB), "anchors and aliases"),
    (task("to: !!python/object:os.system x\n"), "tags"),
    (task("to: !foo x\n"), "tags"),
    (task("task_id: again\n"), "task_id: it is there twice"),
    (task("colour: red\n"), "colour: unknown field"),
    (task("? [a, b]\n: c\n"), "field names"),
    (task("to: [a]\n"), "to: "),
    (task('to: "a\\0b"\n'), "to: expected characters that can be printed"),
    (task('to: "a\\nb"\n'), "to: expected characters that can be printed"),
    (task(f"to: {'x' * 201}\n"), "to: "),
    (task("wait_for_inputs: perhaps\n"), "wait_for_inputs: "),
    (task("pick_policy: best\n"), "pick_policy: "),
    (task("inputs: [{name: a/b, match: x}]\n"), r"inputs\.0\.name: "),
    (task("inputs: [{name: a, match: x}, {name: a, match: y}]\n"), "two have the same name"),
    (task(body="  \n"), "body: expected"),
    (task(body="a\0b"), "control character, U\\+0000"),
    (task("x: " + "y" * 40_000 + "\n"), "front matter is longer"),
    (task(body="x" * MAX_MESSAGE_BYTES), "the limit is"),
    (task(head=HEAD.replace("type: task\n", "")), "type: expected `task` or `reply`"),
    (task(head=HEAD.replace("type: task", "type: order")), "type: expected `task` or `reply`"),
    (task(head=HEAD.replace("from: planner\n", "")), "from: Field required"),
    (task(head=HEAD.replace("plan_id: p", "plan_id: other")), "plan_id: expected 'p'"),
    (task(head=HEAD.replace("type: task", "type: reply")), "status: Field required"),
    (b"{", "not JSON"),
    (b'{"type": "task"', "not JSON"),
    (b'{"a": 1, "a": 2}', "a: it is there twice"),
    (b'{"a": ' * 100_00, "not JSON"),
    (b'{"a":' + b"[" * 60 + b"]" * 60 + b"}", "nested more than"),
    (as_json(task_id=42), "task_id: "),
    (as_json(body=None), "body: expected a text"),
    (as_json(body="a\0b"), "body: "),
    (as_json(to="\x1b[31m"), "to: expected characters"),
    (b'{"type": "task", "to": "\\ud800"}', "to: half of a"),
    (b'{"type": NaN}', "type: NaN is no number of JSON"),
    (rb'{"a\nb": NaN}', "a b: NaN is no number of JSON"),
    (b'{"type": "task", "n": [1e400]}', "n.0: a number is too large"),
    (b'{"type": "task", "n": %b}' % (b"9" * 5000), "n: a number has more than"),
]


@pytest.mark.parametrize(("data", "why"), MALFORMED)
def test_an_invalid_message_is_reported_in_one_line(data: bytes, why: str) -> None:
    with pytest.raises(MessageError, match=why) as raised:
        parse_message(data, "p")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


@given(
    st.one_of(
        st.binary(max_size=300),
        st.text(max_size=300).map(lambda text: f"---\n{text}\n---\nx".encode("utf-8", "replace")),
    )
)
def test_whatever_lies_there_is_a_message_or_none(data: bytes) -> None:
    with suppress(MessageError):
        assert parse_message(data, "p")[0].plan_id == "p"


PLAIN = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Cf", "Zl", "Zp", "Co", "Cn"]), min_size=1, max_size=50
).filter(str.isprintable)
BODY = st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\n\t"), max_size=200)


@given(PLAIN, PLAIN, st.none() | PLAIN, BODY, st.sampled_from(ReplyStatus))
def test_what_is_written_reads_the_same(
    plan: str, task_id: str, subtask: str | None, body: str, status: ReplyStatus
) -> None:
    ids = {"message_id": "k-reply", "plan_id": plan, "task_id": task_id, "subtask_id": subtask, "sender": "a"}
    head = ReplyHead.model_validate({"type": "reply", **ids, "status": status, "artifacts": ("x/a.md", "42")})
    assert parse_message(format_message(head, body).encode(), folder_name(plan)) == (head, body)


def test_what_no_message_may_hold_is_replaced() -> None:
    head = ReplyHead(type="reply", message_id="k", plan_id="p", task_id="t", sender="a", status=ReplyStatus.done)
    assert parse_message(format_message(head, "a\0b").encode(), "p")[1] == "a\ufffdb"


def test_an_envelope_is_a_json_object_of_bounded_size() -> None:
    assert read_envelope(b'{"a": 1}') == {"a": 1}
    for broken in (b"", b"[]", b"{", b'{"a": "' + b"x" * MAX_ENVELOPE + b'"}'):
        with pytest.raises(MessageError):
            read_envelope(broken)
