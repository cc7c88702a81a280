"""What lies in history: tersely what every step brings, and readable whole."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from perdure.codec import AesGcmCodec
from perdure.contracts.agent import StartSnapshot
from perdure.contracts.media import Attached, StoredMedia
from perdure.contracts.models import SparseModel, Undecodable
from perdure.contracts.policy import ApprovalTerms, PolicyCheckRequest, PolicyContext, PolicyVerdict
from perdure.contracts.run.state import Call, Continuation
from perdure.contracts.run.transcript import Segment
from perdure.contracts.run.turn import (
    ContextFull,
    FusedRead,
    FusedTurn,
    FusedTurnRequest,
    ModelTurn,
    PolicyVerdicts,
    SkippedModel,
    TurnRequest,
    Usage,
)
from perdure.contracts.tool import (
    Effect,
    ToolCall,
    ToolError,
    ToolKind,
    ToolOutcome,
)
from perdure.converter import TolerantPayloadConverter, data_converter, with_encryption
from perdure.decisions.run.limits import DEFAULTS
from perdure.decisions.tool_results import reject_unreadable
from perdure.decisions.tools import routes
from tests.drawn import running

CONVERTER = data_converter.payload_converter
TURN = ModelTurn(content=[], stop_reason=None, model="m", usage=Usage(), duration_ms=0)
COUNTS = st.integers(0, 9)
TEXTS = st.text(max_size=3)

MEANING_NOTHING: dict[type[SparseModel], dict[str, Any]] = {
    TurnRequest: {
        "interrupted": False,
        "refused": None,
        "force": None,
        "is_closing": False,
        "window": None,
        "unchecked": False,
        "turn_timeout": timedelta(seconds=120),
        "trace": (),
        "tokens_left": None,
        "usd_left": None,
        "policy": None,
    },
    ModelTurn: {
        "stop_reason": "tool_use",
        "duration_ms": 0,
        "cost_usd": None,
        "broken": (),
        "repeated": (),
        "passed_over": (),
        "invalid_results": {},
        "pieces": 1,
        "verdicts": {},
        "reviews": (),
        "hold": None,
    },
    ToolCall: {
        "effect": Effect.read,
        "attempt": 1,
        "length": 0,
        "head": "",
        "owner": None,
        "execution": None,
        "key_id": None,
        "approval": None,
        "accepts": None,
        "nonce": None,
        "definition": None,
        "changed_by": None,
        "unfinished": None,
    },
    ToolOutcome: {
        "status": "ok",
        "result": None,
        "error": None,
        "artifacts": (),
        "duration_ms": 0,
        "interrupted": False,
        "at": None,
        "media": (),
        "hold": None,
        "unfinished": None,
    },
    StoredMedia: {"name": "", "pixels": None, "is_turned": False, "pages": None, "path": None},
    Attached: {"media": (), "refused": ()},
    FusedTurnRequest: {},
    FusedTurn: {"head": "", "reply": None, "reason": "", "interrupted": False, "hold": None},
    ApprovalTerms: {"approvers": (), "quorum": 1, "not_requester": False, "expires": None, "on_expiry": "deny"},
    PolicyVerdict: {"rule": None, "reason": "", "loosens": False, "terms": (), "facts": {}},
    PolicyContext: {"caller": None, "work": None, "runs": (), "conversation": "", "dry_run": False},
    PolicyCheckRequest: {"edits": {}, "unmade": ()},
    PolicyVerdicts: {"verdicts": {}, "reviews": (), "hold": None},
}


def test_a_default_that_is_in_no_history_never_changes() -> None:
    """Add a field here with its default; to change one that is here, give the field a new name."""
    kinds = set(SparseModel.__subclasses__())
    assert kinds == set(MEANING_NOTHING)
    for kind, defaults in MEANING_NOTHING.items():
        fields = {
            name: field.get_default(call_default_factory=True)
            for name, field in kind.model_fields.items()
            if not field.is_required()
        }
        assert fields == defaults, kind.__name__
    assert FusedRead.model_fields["timeout"].default == timedelta(seconds=30)
    full = ContextFull(tokens=1, window=1, messages=1)  # within a fused turn
    assert full == ContextFull(tokens=1, window=1, messages=1, was_refused=False)
    assert Usage() == Usage(input=0, output=0, cache_read=0, cache_write=0)  # within a turn


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (ToolOutcome(result="x"), '{"result":"x"}'),
        (ToolOutcome(result={"status": "ok", "error": None}), '{"result":{"status":"ok","error":null}}'),
        (TURN, '{"content":[],"stop_reason":null,"model":"m","usage":{}}'),
    ],
)
def test_history_omits_defaults(value: SparseModel, written: str) -> None:
    assert CONVERTER.to_payloads([value])[0].data.decode() == written


@pytest.mark.parametrize("written", [b"\xff", b"no key \xff" * 1000])
def test_a_payload_marked_unreadable_has_a_bounded_reason(written: bytes) -> None:
    """Anybody who may signal a run can send it."""
    (read,) = CONVERTER.from_payloads([Payload(metadata={"encoding": b"binary/unreadable"}, data=written)])
    assert isinstance(read, Undecodable)
    assert len(read.reason) <= 200


@pytest.mark.parametrize("written", [b'{"a": 1, "a": 2}', b'[{"b": {"a": 1, "c": 2, "a": 1}}]'])
def test_duplicate_names_make_a_payload_undecodable(written: bytes) -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=written)
    untyped: list[Any] = [Any]
    for hints in (None, untyped):
        (read,) = CONVERTER.from_payloads([payload], hints)
        assert isinstance(read, Undecodable)
        assert read.reason.endswith("a: it is there twice")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 5000, "0." + "1" * 5000])
def test_an_invalid_number_makes_a_payload_undecodable_with_its_place(number: str) -> None:
    written = f'{{"payload": {{"goal": "x", "context": {{"sums": [1, {{"of": {number}}}]}}}}}}'
    (read,) = CONVERTER.from_payloads([Payload(metadata={"encoding": b"json/plain"}, data=written.encode())])
    assert isinstance(read, Undecodable)
    assert read.reason.startswith("payload.context.sums.1.of: ")
    assert "number" in read.reason
    assert "limit" not in read.reason


@pytest.mark.parametrize("written", [b'{"a": {"a": [{"a": 1}, {"a": 1}]}}', b'{"a": 1e99}', b'"\\u00fc"'])
def test_valid_payloads_are_read_unchanged(written: bytes) -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=written)
    assert CONVERTER.from_payloads([payload]) == [from_json(written)]


def test_model_dump_has_every_field() -> None:
    assert set(TURN.model_dump(mode="json")) == set(ModelTurn.model_fields) - {"hold"}
    assert set(ToolOutcome().model_dump(mode="json")) == set(ToolOutcome.model_fields) - {"at", "hold", "unfinished"}


TURNS = st.builds(
    ModelTurn,
    content=st.just([{"type": "text", "text": ""}]),
    stop_reason=st.none() | TEXTS,
    model=TEXTS,
    usage=st.builds(Usage, input=COUNTS, output=COUNTS, cache_read=COUNTS, cache_write=COUNTS, cache_write_1h=COUNTS),
    duration_ms=COUNTS,
    cost_usd=st.none() | st.just(0.0) | st.just(0.5),
    broken=st.lists(TEXTS, max_size=2).map(tuple),
    passed_over=st.lists(st.builds(SkippedModel, model=TEXTS, why=TEXTS), max_size=1).map(tuple),
)
OUTCOMES = st.builds(
    ToolOutcome,
    status=st.sampled_from(["ok", "error"]),
    result=st.none() | st.booleans() | COUNTS | TEXTS | st.lists(COUNTS, max_size=2),
    error=st.none() | st.builds(ToolError, kind=TEXTS, message=TEXTS, retryable=st.booleans()),
    artifacts=st.lists(TEXTS, max_size=2).map(tuple),
    duration_ms=COUNTS,
    interrupted=st.booleans(),
)


@given(st.one_of(TURNS, OUTCOMES))
def test_sparse_payloads_are_read_back_equal(value: SparseModel) -> None:
    payloads = CONVERTER.to_payloads([value])
    assert CONVERTER.from_payloads(payloads, [type(value)]) == [value]


def test_converters_share_type_adapters_and_tools() -> None:
    """The SDK makes a converter for each run, and a worker keeps a thousand of them."""
    first, second = TolerantPayloadConverter(), TolerantPayloadConverter()
    assert first.converters[b"json/plain"] is second.converters[b"json/plain"]
    opening = StartSnapshot(agent="a", model="m", definition="d", tools=routes(), limits=DEFAULTS, workspace="w")
    payloads = first.to_payloads([opening])
    read = [each.from_payloads(payloads, [StartSnapshot])[0] for each in (first, second)]
    assert read == [opening, opening]
    assert read[0].tools is read[1].tools


@pytest.mark.parametrize("depth", [1, 183, 184, 195, 196, 198, 300])
def test_a_result_that_a_run_keeps_is_read_back_by_its_next_execution(depth: int) -> None:
    result: Any = 1
    for _ in range(depth):
        result = [result]
    call = Call(tool_use_id="u", tool="look", kind=ToolKind.python, effect=Effect.read, step=1, arguments={})
    call = call.evolve(outcome=reject_unreadable(ToolOutcome(result=result)))
    state = running(routes()).evolve(calls=(call,))
    segments = (Segment(ref="r", start=0, end=1, head="h"),)
    payloads = CONVERTER.to_payloads([Continuation(state=state, segments=segments)])
    [read] = CONVERTER.from_payloads(payloads)  # untyped, as the run takes what it begins with
    assert not isinstance(read, Undecodable)


KEPT_BY_TEMPORAL = 4096  # bytes, of the failure of an activity that will be retried


@pytest.mark.parametrize("causes", [0, 1, 4])
@pytest.mark.parametrize("converter", [data_converter, with_encryption(AesGcmCodec({"k": bytes(32)}))])
async def test_a_failure_of_many_frames_keeps_its_type_its_message_and_the_end_of_its_trace(
    converter: DataConverter, causes: int
) -> None:
    def fail(frames: int, causes: int) -> None:
        if frames:
            fail(frames - 1, causes)
        try:
            if causes:
                fail(100, causes - 1)
        except ApplicationError as error:
            raise ApplicationError("the file was changed", type="StoredFileChangedError") from error
        raise ApplicationError("the file was changed", type="StoredFileChangedError") from OSError("no")

    failure = Failure()
    with pytest.raises(ApplicationError) as raised:
        fail(100, causes)
    await converter.encode_failure(raised.value, failure)
    assert failure.ByteSize() < KEPT_BY_TEMPORAL
    read = await converter.decode_failure(failure)
    assert isinstance(read, ApplicationError)
    assert (read.type, read.message) == ("StoredFileChangedError", "the file was changed")
    assert read.failure is not None
    assert read.failure.stack_trace.endswith("from error\n" if causes else 'from OSError("no")\n')
