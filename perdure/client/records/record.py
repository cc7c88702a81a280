"""A signed record: an export as lines, chained by hashes and signed with Ed25519 (`docs/record.md`).

The hashes cover salted hashes of the texts, not the texts themselves: a text can be erased and the chain still holds.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256, sha512
from importlib import import_module
from typing import Annotated, Any

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509 import load_pem_x509_certificates
from pydantic import Field, ValidationError

from perdure.contracts.models import StrictModel, is_utf8
from perdure.decisions.errors import ReportedError
from perdure.decisions.people.signature import is_valid_signature, public_text
from perdure.decisions.text.formatting import truncate
from perdure.extras import install_command

RECORD_FORMAT = "perdure.record.1"
NOT_CANONICAL = "not a JSON object in its canonical form"
NO_HASH = "0" * 64  # `prev` of the first event
# The fields that stay readable. All other fields are texts, hashes of content among them: a plain one would let the
# content be guessed after it is erased.
IDS = {"run", "parent", "origin", "execution", "event_id", "tool_use_id", "question"}
KINDS = {"type", "event", "event_type", "kind", "status", "activity", "tool", "effect", "via", "decision", "model"}
TIMES = {"at", "exported_at", "requested_at", "ended_at", "asked_at", "closed_at"}
FIGURES = {"turn", "step", "attempts", "generation", "is_error", "usage", "cost_usd", "duration_ms", "pieces"}
FILES = {"path", "size"}
PEOPLE = {"sender", "by"}  # who answered stays readable when the texts of the answer are erased
CLEAR = IDS | KINDS | TIMES | FIGURES | FILES | PEOPLE
Event = dict[str, Any]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SealedText(StrictModel):
    """A text as JSON, and the salt of its hash."""

    salt: str = Field(pattern=r"^[0-9a-f]{32}$")
    text: str


class RecordLine(StrictModel):
    """An event of a record. `event.sealed` has the hashes of its texts."""

    seq: int = Field(ge=1, strict=True)
    prev: Hash
    event: dict[str, Any]
    hash: Hash
    texts: dict[str, SealedText] = Field(default_factory=dict)


class RecordSignature(StrictModel):
    """The last line of a record: the number of events, the hash of the last one, and the signature of this line.

    `timestamp` is an authority's time stamp (RFC 3161) of the line without it.
    """

    format: str = Field(pattern=rf"^{RECORD_FORMAT}$")
    count: int = Field(ge=1, strict=True)
    last: Hash
    key: str
    sig: str
    timestamp: str | None = None


def sign_events(
    events: Iterable[Event],
    key: Ed25519PrivateKey,
    make_salt: Callable[[], str],
    stamp: Callable[[bytes], str] | None = None,
) -> Iterator[bytes]:
    """Yield the lines of a record. `stamp` returns the time stamp of a text, as base64."""
    seq, last = 0, NO_HASH
    for seq, event in enumerate(events, 1):
        sealed, texts = _seal_texts(event, make_salt)
        line: Event = {"seq": seq, "prev": last, "event": sealed}
        last = _hash(line)
        yield rfc8785.dumps({**line, "hash": last, **({"texts": texts} if texts else {})}) + b"\n"
    head: Event = {"format": RECORD_FORMAT, "count": seq, "last": last, "key": public_text(key)}
    signed = {**head, "sig": b64encode(key.sign(rfc8785.dumps(head))).decode()}
    yield rfc8785.dumps({**signed, **({"timestamp": stamp(rfc8785.dumps(signed))} if stamp else {})}) + b"\n"


def _seal_texts(event: Event, make_salt: Callable[[], str]) -> tuple[Event, dict[str, Any]]:
    """Return the event with hashes in place of its texts, and the texts with their salts."""
    clear: Event = {}
    texts = {}
    for name, value in event.items():
        if name in CLEAR and _stays_canonical(value):
            clear[name] = value
        elif value not in (None, "", [], {}):
            text = json.dumps(value, ensure_ascii=False)
            texts[name] = {"salt": make_salt(), "text": text if is_utf8(text) else json.dumps(value)}
    hashes = {name: _hash_text(text["salt"], text["text"]) for name, text in texts.items()}
    return {**clear, "sealed": hashes} if hashes else clear, texts


def _stays_canonical(value: Any) -> bool:
    """Return whether the value has a canonical form that is read back as the same; 2e16 is read as an integer."""
    form = _canonical(value)
    return form is not None and _canonical(json.loads(form)) == form


def _canonical(value: Any) -> bytes | None:
    """Return the value as canonical JSON (RFC 8785), if it has such a form."""
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeError, RecursionError):
        return None


def _hash(line: Event) -> str:
    return sha256(rfc8785.dumps(line)).hexdigest()


def _hash_text(salt: str, text: str) -> str:
    return sha256(f"{salt}{text}".encode()).hexdigest()


def list_events(export: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of an export, given as JSON: the run, its parts, then those of its exported subtasks."""
    run = {"run": export["run_id"]}
    own = ("status", "parent", "origin", "exported_at", "policy", "usage", "cost_usd", "start", "end", "versions")
    yield {"type": "run", **run, **{name: export.get(name) for name in (*own, "missing")}}
    for ref, content in export["definitions"].items():
        yield {"type": "definition", **run, "definition": ref, "model": content["model"], "content": content}
    for kind in ("received", "turns", "notices"):
        yield from ({**item, "type": kind.removesuffix("s"), **run} for item in export[kind])
    for call in export["calls"]:
        yield {"type": "call", **run, **{name: value for name, value in call.items() if name != "made"}}
        yield from ({"type": "attempt", **run, "tool_use_id": call["tool_use_id"], **made} for made in call["made"])
    for question in export["questions"]:
        yield from _question_events(export, question)
    transcript = export["transcript"]
    for part in transcript["parts"]:
        yield {"type": "part", **run, **part}
    yield {"type": "transcript", **run, **{name: value for name, value in transcript.items() if name != "parts"}}
    for artifact in export["artifacts"]:
        yield {"type": "artifact", **run, **{name: artifact[name] for name in ("path", "size", "sha256")}}
    for execution in export["executions"]:
        for event in execution["events"]:
            ids = {"execution": execution["execution"], "event_id": event["id"], "event_type": event["type"]}
            attributes = {name: value for name, value in event.items() if name not in ("id", "type", "at")}
            yield {"type": "history", **run, **ids, "at": event["at"], "attributes": attributes}
    for subtask in export["subtasks"]:
        yield from list_events(subtask["export"]) if "export" in subtask else ()


def _question_events(export: Mapping[str, Any], question: Mapping[str, Any]) -> Iterator[Event]:
    """Yield a question, the answers that were taken, and those that were not."""
    ids = {"run": export["run_id"], "question": question["id"]}
    yield {"type": "question", **ids, **{name: question[name] for name in ("text", "asked_at", "closed_at")}}
    for answer in question["answers"]:
        yield {"type": "answer", **ids, **answer}
    for answer in question["rejected"]:
        yield {"type": "rejected_answer", **ids, **answer}


@dataclass
class Verification:
    """The result of a check: `findings` are empty if the record holds. `artifacts` have their hashes by path.

    `timestamp` is that of the record, which is not checked here, and `stamped` the text that it stamps.
    """

    count: int = 0
    erased: int = 0
    key: str = ""
    findings: list[str] = field(default_factory=list)
    artifacts: dict[str, str] = field(default_factory=dict)
    timestamp: str | None = None
    stamped: bytes = b""


def verify_record(lines: Iterable[bytes], key: str | None = None) -> Verification:
    """Check all lines of a record, and that `key` signed it, if given."""
    result = Verification()
    order: list[int] = []  # as in the file
    hashes: dict[int, tuple[str, str]] = {0: ("", NO_HASH)}  # by event: prev, hash
    head: RecordSignature | None = None
    for number, data in enumerate(lines, 1):
        line = _parse_line(data)
        if not data.endswith(b"\n"):
            result.findings.append(f"line {number} does not end with a line feed")
        if isinstance(line, str):
            result.findings.append(f"line {number}: {line}")
        elif head is not None:
            result.findings.append(f"line {number} stands after the signature")
        elif isinstance(line, RecordSignature):
            head = line
        else:
            _check_event(line, result)
            if line.seq in hashes:
                result.findings.append(f"event {line.seq} stands twice")
            order.append(line.seq)
            hashes[line.seq] = (line.prev, line.hash)
    result.count = len(order)
    result.findings += _find_order_errors(order, hashes)
    result.findings += _find_signature_errors(head, max(hashes), hashes[max(hashes)][1], key)
    if head is not None:
        result.key, result.timestamp = head.key, head.timestamp
        result.stamped = rfc8785.dumps(head.model_dump(exclude={"timestamp"})) if head.timestamp is not None else b""
    return result


def _parse_line(data: bytes) -> RecordLine | RecordSignature | str:
    """Return the line, or the reason why it is not one."""
    try:
        value = json.loads(data.removesuffix(b"\n").decode())
    except (ValueError, RecursionError):
        return NOT_CANONICAL
    if not isinstance(value, dict) or _canonical(value) != data.removesuffix(b"\n"):
        return NOT_CANONICAL
    try:
        return (RecordSignature if "format" in value else RecordLine).model_validate(value)
    except ValidationError:
        return "not an event, and not a signature of this format"


def _check_event(line: RecordLine, result: Verification) -> None:
    if _hash(line.model_dump(include={"seq", "prev", "event"})) != line.hash:
        result.findings.append(f"event {line.seq} was changed")
        return
    sealed = line.event.get("sealed")
    hashes = sealed if isinstance(sealed, dict) else {}
    for name, value in line.texts.items():
        if _hash_text(value.salt, value.text) != hashes.get(name):
            result.findings.append(f"event {line.seq}: the text {name} was changed")
    result.erased += len(hashes.keys() - line.texts.keys())
    if line.event.get("type") == "artifact" and (written := line.texts.get("sha256")):  # else it was erased
        result.artifacts[str(line.event.get("path"))] = written.text.strip('"')


def _find_order_errors(order: list[int], hashes: Mapping[int, tuple[str, str]]) -> Iterator[str]:
    before = 0
    for seq in sorted(set(order)):
        if seq > before + 1:
            yield f"events {before + 1} to {seq - 1} are missing"
        elif hashes[seq][0] != hashes[before][1]:
            yield f"event {seq} does not follow event {before}"
        before = seq
    for seq, expected in zip(order, sorted(order), strict=True):
        if seq != expected:
            yield f"event {seq} is not in its place"


def _find_signature_errors(head: RecordSignature | None, end: int, last: str, key: str | None) -> Iterator[str]:
    if head is None:
        yield f"the signature is missing: the record ends at event {end}"
        return
    if head.count != end:
        yield f"the record ends at event {end}, and {head.count} events are signed"
    elif head.last != last:
        yield f"event {end} is not the last one that was signed"
    if not is_valid_signature(head.key, head.sig, rfc8785.dumps(head.model_dump(exclude={"sig", "timestamp"}))):
        yield "the signature is not valid"
    if key is not None and head.key != key:
        yield f"signed with another key: {head.key}"


TIMESTAMP_TIMEOUT = 30.0  # seconds
MAX_TIMESTAMP_BYTES = 256 * 1024


class TimestampError(ReportedError):
    """The time stamp is not valid; the message is the reason."""


def load_library() -> Any:
    """Return the package. Raises ReportedError if it is not installed."""
    try:
        return import_module("rfc3161_client")
    except ModuleNotFoundError:
        raise ReportedError(f"time stamps need the package rfc3161-client: {install_command('timestamp')}") from None


def request_timestamp(url: str, message: bytes) -> str:
    """Return the answer of a time-stamping authority about the message, as base64. Raises ReportedError."""
    library = load_library()
    request = library.TimestampRequestBuilder().data(message).hash_algorithm(library.HashAlgorithm.SHA256).build()
    data = _post(url, request.as_bytes())
    try:
        response = library.decode_timestamp_response(data)
        if response.status != library.PKIStatus.GRANTED:
            reason = "; ".join(response.status_string) or library.PKIStatus(response.status).name.lower()
            raise ReportedError(f"the time-stamping authority rejects the request: {truncate(reason)}")
        info = response.tst_info
    except ValueError:
        raise ReportedError("the time-stamping authority does not answer with a time stamp") from None
    if (info.nonce, info.message_imprint.message) != (request.nonce, request.message_imprint.message):
        raise ReportedError("the time-stamping authority answers with the time stamp of something else")
    return b64encode(data).decode()


def _post(url: str, body: bytes) -> bytes:
    import httpx  # who verifies a record asks nobody

    headers = {"Content-Type": "application/timestamp-query", "Accept": "application/timestamp-reply"}
    data = b""
    try:
        with httpx.stream("POST", url, content=body, headers=headers, timeout=TIMESTAMP_TIMEOUT) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_bytes():
                data += chunk
                if len(data) > MAX_TIMESTAMP_BYTES:
                    raise ReportedError(f"the time stamp is larger than {MAX_TIMESTAMP_BYTES:,} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = truncate(str(error).partition("\n")[0] or type(error).__name__)
        raise ReportedError(f"no time stamp by the authority of --timestamp: {reason}") from None
    return data


def check_subject(timestamp: str, message: bytes) -> None:
    """Check that this is a time stamp, and one of the message; who made it is not checked.

    Raises TimestampError, and ReportedError if the package is not installed.
    """
    library = load_library()
    try:
        response = library.decode_timestamp_response(b64decode(timestamp, validate=True))
        imprint = response.tst_info.message_imprint.message
    except ValueError as error:
        raise TimestampError(truncate(str(error).partition("\n")[0])) from None
    if imprint not in (sha256(message).digest(), sha512(message).digest()):
        raise TimestampError("it is of something else")


def check_timestamp(timestamp: str, message: bytes, roots: bytes) -> datetime:
    """Return the time of a valid time stamp of the message, by an authority whose root is in `roots`, PEM.

    Raises TimestampError, and ReportedError if there are no roots.
    """
    library = load_library()
    try:
        certificates = load_pem_x509_certificates(roots)
    except ValueError:
        raise ReportedError("--tsa-cert has no certificate in PEM") from None
    try:
        response = library.decode_timestamp_response(b64decode(timestamp, validate=True))
        library.VerifierBuilder(roots=certificates).build().verify_message(response, message)
        time: datetime = response.tst_info.gen_time
    except (library.VerificationError, ValueError) as error:
        raise TimestampError(truncate(str(error).partition("\n")[0])) from None
    return time
