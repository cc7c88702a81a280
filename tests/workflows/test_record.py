"""A signed record: what is in it, that every change of it is found, and that a verifier in Node agrees."""

import json
import re
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.activities.storage.store import LocalStores
from perdure.client.records.export import Exporter
from perdure.client.records.record import Verification, list_events, sign_events, verify_record
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.tool import Approval
from perdure.decisions.people.signature import _SMALL_ORDER, PRIME, has_small_order, public_text
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld
from tests.workflows.script import FINISH

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
VERIFIER = Path(__file__).parents[2] / "examples" / "verify-record" / "verify.mjs"
Lines = list[dict[str, Any]]


def sign(events: Any, key: Ed25519PrivateKey = KEY, stamp: Callable[[bytes], str] | None = None) -> list[bytes]:
    numbers = count()
    return list(sign_events(events, key, lambda: f"{next(numbers):032x}", stamp))


def read(lines: list[bytes]) -> Lines:
    return [json.loads(line) for line in lines]


def write(lines: Lines) -> list[bytes]:
    return [rfc8785.dumps(line) + b"\n" for line in lines]


EVENTS = [
    {
        "type": "run",
        "run": "r1",
        "status": "completed",
        "cost_usd": 1e-7,
        "usage": {"input": 1},
        "start": {"goal": "ä"},
    },
    *({"type": "answer", "question": f"q{n}", "decision": "approve", "by": "eva", "at": n / 7} for n in range(18)),
    {"type": "artifact", "path": "artifacts/a.md", "sha256": "0" * 64},
]
RECORD = sign(EVENTS)
STAMPED = sign(EVENTS, stamp=lambda _: "AAAA")


def findings(lines: list[bytes], key: Ed25519PrivateKey | None = None) -> list[str]:
    return verify_record(lines, public_text(key) if key else None).findings


def test_a_record_holds_and_has_nothing_but_its_events() -> None:
    assert verify_record(RECORD, public_text(KEY)) == Verification(
        count=20, key=public_text(KEY), artifacts={"artifacts/a.md": "0" * 64}
    )


def remade(lines: Lines, seq: int) -> Lines:
    """Change an event, with its hash made again."""
    line = lines[seq - 1]
    fields = {"seq": seq, "prev": line["prev"], "event": {**line["event"], "decision": "deny"}}
    changed = {**line, **fields, "hash": sha256(rfc8785.dumps(fields)).hexdigest()}
    return [*lines[: seq - 1], changed, *lines[seq:]]


def with_event(lines: Lines, seq: int, event: Any) -> Lines:
    return [{**line, "event": event} if line.get("seq") == seq else line for line in lines]


ATTACKS: dict[str, tuple[Callable[[Lines], Lines], list[str]]] = {
    "an event is changed": (
        lambda lines: with_event(lines, 5, {**lines[4]["event"], "decision": "deny"}),
        ["event 5 was changed"],
    ),
    "an event is changed, and its hash": (lambda lines: remade(lines, 5), ["event 6 does not follow event 5"]),
    "the last event is changed, and its hash": (
        lambda lines: remade(lines, 20),
        ["event 20 is not the last one that was signed"],
    ),
    "an event is left out": (lambda lines: [*lines[:6], *lines[7:]], ["events 7 to 7 are missing"]),
    "the first event is left out": (lambda lines: lines[1:], ["events 1 to 1 are missing"]),
    "two events change places": (
        lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
        ["event 4 is not in its place", "event 3 is not in its place"],
    ),
    "two answers are exchanged": (
        lambda lines: with_event(with_event(lines, 3, lines[3]["event"]), 4, lines[2]["event"]),
        ["event 3 was changed", "event 4 was changed"],
    ),
    "an event is there twice": (
        lambda lines: [*lines[:5], lines[4], *lines[5:]],
        ["event 5 stands twice"],
    ),
    "the tail is cut off": (
        lambda lines: [*lines[:19], lines[-1]],
        ["the record ends at event 19, and 20 events are signed"],
    ),
    "the tail is cut off with the signature": (
        lambda lines: lines[:19],
        ["the signature is missing: the record ends at event 19"],
    ),
    "something stands after the signature": (
        lambda lines: [*lines, lines[0]],
        ["line 22 stands after the signature"],
    ),
    "the signature is of another record": (
        lambda lines: [*lines[:-1], read(sign(EVENTS[:-1]))[-1]],
        ["the record ends at event 20, and 19 events are signed"],
    ),
    "a text is changed": (
        lambda lines: [{**lines[0], "texts": {"start": {**lines[0]["texts"]["start"], "text": '"b"'}}}, *lines[1:]],
        ["event 1: the text start was changed"],
    ),
    "a text is added": (
        lambda lines: [{**lines[0], "texts": {"x": lines[0]["texts"]["start"]}}, *lines[1:]],
        ["event 1: the text x was changed"],
    ),
    "a letter moves from a text to its salt": (
        lambda lines: [
            {
                **lines[0],
                "texts": {
                    n: {"salt": t["salt"] + t["text"][0], "text": t["text"][1:]} for n, t in lines[0]["texts"].items()
                },
            },
            *lines[1:],
        ],
        ["line 1: not an event, and not a signature of this format", "events 1 to 1 are missing"],
    ),
    "all is signed with another key": (
        lambda lines: read(sign(EVENTS, OTHER)),
        [f"signed with another key: {public_text(OTHER)}"],
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_is_found_and_named(name: str) -> None:
    change, expected = ATTACKS[name]
    assert findings(write(change(read(RECORD))), KEY) == expected


def test_another_key_shows_only_if_the_right_one_is_known() -> None:
    """A record that is signed anew by another key holds: the key is what a reader must know."""
    forged = sign(EVENTS, OTHER)
    assert findings(forged) == []
    assert verify_record(forged).key == public_text(OTHER)


def test_texts_can_be_erased_and_the_rest_is_still_proven() -> None:
    bare = [{name: value for name, value in line.items() if name != "texts"} for line in read(RECORD)]
    result = verify_record(write(bare), public_text(KEY))
    assert (result.findings, result.erased) == ([], 2)
    assert "ä".encode() not in b"".join(write(bare))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON value."""
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield from places(inner, (*path, name))


def changed_at(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed_at(value[path[0]], path[1:], change)
    return copy


def alter(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value[:-1] + ("0" if value[-1:] == "1" else "1")
        case None:
            return "x"
        case dict():
            return {**value, "added": 1}
        case _:
            return [*value, 1]


def erase_at(value: Any, path: tuple[Any, ...]) -> Any:
    *above, last = path

    def drop(holder: Any) -> Any:
        if isinstance(holder, dict):
            return {name: inner for name, inner in holder.items() if name != last}
        return [inner for index, inner in enumerate(holder) if index != last]

    return changed_at(value, tuple(above), drop)


def is_erasure(path: tuple[Any, ...]) -> bool:
    """Return whether the removal of this place only erases texts."""
    return path[1:2] == ("texts",) and len(path) <= 3


def every_change(lines: Lines, numbers: Collection[int] = range(100)) -> Iterator[tuple[tuple[Any, ...], list[bytes]]]:
    """Every value of these lines changed, and every value removed, one at a time."""
    for path in (path for path in places(lines) if path[0] in numbers):
        yield path, write(changed_at(lines, path, alter))
        if not is_erasure(path):
            yield path, write(erase_at(lines, path))


def test_every_field_that_is_changed_or_removed_is_found() -> None:
    changes = list(every_change(read(RECORD)))
    assert len(changes) > 300
    assert [path for path, lines in changes if not findings(lines, KEY)] == []


@given(st.integers(0, len(b"".join(RECORD)) - 1), st.integers(1, 255))
def test_every_changed_byte_is_found(at: int, difference: int) -> None:
    data = bytearray(b"".join(RECORD))
    data[at] ^= difference
    assert findings(bytes(data).splitlines(keepends=True), KEY)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), st.none() | st.integers() | st.floats() | st.text() | st.lists(st.text())))
def test_whatever_an_event_holds_it_is_signed_and_holds(event: dict[str, Any]) -> None:
    """Numbers beyond those of JSON and lone surrogates are kept as texts."""
    lines = sign([event, {"cost_usd": 2**70, "tool": "\ud800", "by": event}])
    assert findings(lines, KEY) == []


def run_node(folder: Path, records: list[list[bytes]]) -> tuple[int, list[list[str]]]:
    """Return the findings of the verifier in Node, for each record."""
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "key.pem").write_bytes(public)
    names = [f"{number}" for number in range(len(records))]
    for name, lines in zip(names, records, strict=True):
        (folder / name).write_bytes(b"".join(lines))
    done = subprocess.run(
        [str(shutil.which("node")), str(VERIFIER), "--key", "key.pem", *names],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    found: dict[str, list[str]] = {name: [] for name in names}
    for line in done.stdout.splitlines():
        name, _, said = line.partition(": ")
        found[name].append(said)
    return done.returncode, [found[name] for name in names]


def encode_point(y: int, *, sign: bool = False) -> str:
    return b64encode((y | sign << 255).to_bytes(32, "little")).decode()


# Points of small order in each of their encodings, the ones that are not canonical too.
SMALL_ORDER_KEYS = [
    encode_point(y + extra, sign=sign)
    for y in sorted(_SMALL_ORDER)
    for extra in (0, PRIME)
    if y + extra < 2**255
    for sign in (False, True)
]


def forge(key: str) -> list[bytes]:
    """Return a record that someone without a private key has signed, with an invented signature."""
    *lines, head = read(RECORD)
    for attempt in range(64):  # for a key of order 8, one of eight contents
        event = {"type": "run", "run": f"forged {attempt}"}
        line: dict[str, Any] = {"seq": 1, "prev": "0" * 64, "event": event}
        last = sha256(rfc8785.dumps(line)).hexdigest()
        head = {"format": head["format"], "count": 1, "last": last, "key": key}
        for r in SMALL_ORDER_KEYS:
            raw = b64decode(r) + bytes(32)
            with suppress(InvalidSignature, ValueError):
                Ed25519PublicKey.from_public_bytes(b64decode(key)).verify(raw, rfc8785.dumps(head))
                return write([{**line, "hash": last}, {**head, "sig": b64encode(raw).decode()}])
    return write([*lines, {**head, "sig": "", "key": key}])  # the library takes no such signature


def test_a_key_of_small_order_proves_nothing() -> None:
    forged = [forge(key) for key in SMALL_ORDER_KEYS]
    assert sum(json.loads(lines[-1])["sig"] != "" for lines in forged) > 2  # else it proves nothing
    assert [verify_record(lines).findings for lines in forged] != [[]]
    assert all("the signature is not valid" in verify_record(lines).findings for lines in forged)
    assert not any(has_small_order(Ed25519PrivateKey.generate().public_key().public_bytes_raw()) for _ in range(50))


def test_a_record_without_its_last_line_feed_does_not_hold() -> None:
    assert findings([*RECORD[:-1], RECORD[-1].removesuffix(b"\n")], KEY) == ["line 21 does not end with a line feed"]


def test_the_hash_of_an_artifact_can_be_erased_and_is_then_not_compared() -> None:
    lines = read(RECORD)
    assert "0" * 64 not in json.dumps(lines[-2]["event"])
    lines[-2].pop("texts")
    result = verify_record(write(lines), public_text(KEY))
    assert (result.findings, result.erased, result.artifacts) == ([], 1, {})


def test_who_answered_stays_readable_when_the_texts_of_an_answer_are_erased() -> None:
    answer = {"type": "answer", "by": "eva", "sender": {"door": "gateway", "token": "eva"}, "text": "yes", "at": "now"}
    lines = [{name: value for name, value in line.items() if name != "texts"} for line in read(sign([answer]))]
    result = verify_record(write(lines), public_text(KEY))
    assert (result.findings, result.erased) == ([], 1)
    assert (lines[0]["event"]["by"], lines[0]["event"]["sender"]["token"]) == ("eva", "eva")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_verifier_in_node_agrees_on_every_change(tmp_path: Path) -> None:
    assert len(VERIFIER.read_text(encoding="utf-8").splitlines()) <= 100
    attacks = [write(change(read(RECORD))) for change, _ in ATTACKS.values()]
    forged = [forge(key) for key in SMALL_ORDER_KEYS]
    odd = [
        *forged,
        [*RECORD[:-1], RECORD[-1].rstrip()],
        [b"\xff\n"],
        [b"{}\n"],
        [b"\n"],
        [b'{"seq": 1}\n'],
        [b"[1]\n"],
        [*RECORD, b"\n"],
        [b"[" * 100_000],
    ]
    changed = [*every_change(read(RECORD)), *every_change(read(STAMPED), [len(STAMPED) - 1])]
    records = [RECORD, STAMPED, *attacks, *odd, *(lines for _, lines in changed)]
    code, said = run_node(tmp_path, records)
    ours = [verify_record(lines, public_text(KEY)) for lines in records]
    assert code == 1
    assert [lines[:-1] for lines in said] == [result.findings for result in ours]
    assert said[0] == said[1] == ["holds: 20 events, 0 texts erased"]


async def test_the_record_of_a_run_has_its_calls_and_who_approved_what(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", approval=Approval.always)
    async with world([calls(("pay", {"cents": 5}))] * 2 + [FINISH], pay) as it:
        run = await it.start()
        for question, by, shown in (("q1", "eva", "pay 5, as a page shows it"), ("q2", "adam", None)):
            call = (await it.until_question(run, question))["call"]
            answer = HumanInput(question_id=question, call=call, decision=Decision.approve, by=by, shown=shown)
            await run.execute_update("answer", answer.model_dump(mode="json", exclude_none=True))
        await run.result()
        stores = LocalStores(it.project.workspaces)
        record = await Exporter(it.client, stores, stores, asks=True).export(run.id.removeprefix("run:"))
    export = record.model_dump(mode="json")
    lines = sign(list_events(export))
    result = verify_record(lines, public_text(KEY))
    assert (result.findings, result.erased) == ([], 0)
    events = read(lines)[:-1]
    kinds = {line["event"]["type"] for line in events}
    assert kinds >= {
        "run",
        "definition",
        "received",
        "turn",
        "call",
        "attempt",
        "question",
        "answer",
        "part",
        "history",
    }
    assert len([line for line in events if line["event"]["type"] == "history"]) == sum(
        len(execution.events) for execution in record.executions
    )
    clear = [{name: value for name, value in line["event"].items() if name != "sealed"} for line in events]
    assert re.search(r"\b[0-9a-f]{64}\b", json.dumps(clear)) is None  # from which an erased text could be guessed
    answers = [line for line in events if line["event"]["type"] == "answer"]
    assert [line["event"]["decision"] for line in answers] == ["approve", "approve"]
    texts = [{name: json.loads(text["text"]) for name, text in line["texts"].items()} for line in answers]
    assert [line["event"]["by"] for line in answers] == ["eva", "adam"]
    assert [text.get("shown") for text in texts] == ["pay 5, as a page shows it", None]
    firsts = {line.get("event", {}).get("type"): number for number, line in reversed(list(enumerate(read(lines))))}
    changes = list(every_change(read(lines), firsts.values()))
    assert len(changes) > 500
    assert [path for path, changed in changes if not findings(changed, KEY)] == []
