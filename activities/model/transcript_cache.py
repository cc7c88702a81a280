"""The worker's cache of conversations.

Model and tool activities feed it as they finish, so that a turn's input is a cursor and not the conversation.
Missing parts are copied from the run itself if this worker has it in memory. Otherwise closed segments are read from
the run's store, and the rest by query, after the longest known prefix. The hash chain proves that the result is the
run's own transcript.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.storage.store import Store, StoredFileChangedError, Stores, must_have_hash
from perdure.activities.storage.workspace import folder_name
from perdure.activities.temporal import own_workflow_id
from perdure.contracts.conversation import TurnRecord
from perdure.contracts.run.transcript import Part, PartKind, Segment, TranscriptPage
from perdure.decisions.ids import digest, run_id_of_workflow
from perdure.decisions.run.compaction import brief_of, journal_digest_of, messages_of
from perdure.decisions.run.transcript import Transcript

_PARTS = TypeAdapter(list[Part])
_RECORD = "turn-"
_SEGMENT = re.compile(r"segment-([0-9a-f]{32})\.json")


@dataclass(frozen=True)
class TranscriptCursor:
    """A run's first `length` parts, whose hash is `head`."""

    workflow_id: str
    run_id: str
    length: int
    head: str


class TranscriptMismatchError(Exception):
    """The run's transcript is not the one that the turn was started with: the run moved on, or was reset."""


@dataclass
class ModelView:
    """The first `length` parts as the model sees them; `digest` and `brief` are added to the system prompt."""

    length: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    digest: str = ""
    brief: str = ""
    used: set[str] = field(default_factory=set)  # ids of tool uses

    def read_parts(self, parts: Sequence[Part]) -> None:
        """Add the new parts only, so that the cost of a turn does not grow with the conversation."""
        new = parts[self.length :]
        self.messages = messages_of(parts, self.messages, self.length)
        self.used |= {block["id"] for part in new for block in part.content if "id" in block}
        kinds = {part.kind for part in new}
        if PartKind.journal in kinds:
            self.digest = journal_digest_of(parts)
        if PartKind.goal in kinds:
            self.brief = brief_of(parts)
        self.length = len(parts)


@dataclass
class CachedConversation:
    """One run's transcript, as far as this worker has it."""

    transcript: Transcript = field(default_factory=Transcript)
    reply: Part | None = None  # fed, but not yet known to be part of the transcript
    results: dict[str, Part] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    fed: int = 0  # bytes of the reply and results above
    weighed: int = 0  # its bytes in the cache's total
    _shown: ModelView = field(default_factory=ModelView)

    def model_view(self) -> ModelView:
        """Return the view of the model, as Messages API messages."""
        self._shown.read_parts(self.transcript.parts)
        return self._shown

    def truncate(self, length: int) -> None:
        self.transcript.truncate(length)
        if self._shown.length > length:
            self._shown = ModelView()

    def follow_live(self, live: Transcript, length: int) -> bool:
        """Continue with the parts of the run in memory, after the shared prefix: a worker then holds them once."""
        for same in (self.transcript.length, live.base):
            if same <= length and (head := live.head_at(same)) is not None and head == self.transcript.head_at(same):
                self.truncate(same)
                self.transcript.take(live, length)
                self.forget_fed()
                return True
        return False

    def forget_fed(self) -> None:
        self.reply, self.results, self.fed = None, {}, 0

    def append_fed(self, length: int, head: str) -> bool:
        """Append the parts fed since, and return True if the result is the requested transcript."""
        known = self.transcript.length
        if self.reply is not None:
            self.transcript.append(self.reply)
        last = self.transcript.parts[-1:]
        tool_uses = [b["id"] for part in last for b in part.content if b.get("type") == "tool_use"]
        for part in [self.results[i] for i in tool_uses if i in self.results]:
            self.transcript.append(part)
        if self.transcript.head_at(length) == head:
            self.truncate(length)
            self.reply = None
            return True
        self.truncate(known)
        return False


class TranscriptCache:
    """Conversations by workflow id, the least recently used dropped above `max_bytes` of parts."""

    def __init__(self, client: Client, stores: Stores, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._client = client
        self._stores = stores
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, CachedConversation] = OrderedDict()
        self._bytes = 0
        self._live: WeakValueDictionary[str, Transcript] = WeakValueDictionary()  # by Temporal's run id

    def share_live(self, run_id: str, live: Transcript) -> None:
        """Offer the transcript of a run in this worker's memory, while it is there. Called from workflow threads."""
        self._live[run_id] = live

    def feed_reply(self, workflow_id: str, part: Part) -> None:
        conversation = self._conversation_of(workflow_id)
        conversation.reply, conversation.results, conversation.fed = part, {}, len(to_json(part))
        self._update_size(workflow_id, conversation)

    def feed_result(self, workflow_id: str, tool_use_id: str, part: Part) -> None:
        conversation = self._conversation_of(workflow_id)
        conversation.results[tool_use_id] = part
        conversation.fed += len(to_json(part))
        self._update_size(workflow_id, conversation)

    async def read_current(self, length: int, head: str) -> CachedConversation:
        """Return the conversation of the current activity's run. Raises as `read_conversation`."""
        execution = activity.info().workflow_run_id or ""
        return await self.read_conversation(TranscriptCursor(own_workflow_id(), execution, length, head))

    async def read_conversation(self, wanted: TranscriptCursor) -> CachedConversation:
        """Return the conversation with this length and hash. Raises TranscriptMismatchError if the run has none."""
        conversation = self._conversation_of(wanted.workflow_id)
        async with conversation.lock:
            if conversation.transcript.head_at(wanted.length) == wanted.head:
                conversation.truncate(wanted.length)
            elif not (self._follow_live(conversation, wanted) or conversation.append_fed(wanted.length, wanted.head)):
                await self._refill_from_run(conversation, wanted)
            self._update_size(wanted.workflow_id, conversation)
        return conversation

    def hand_over(self, workflow_id: str, heir: str) -> None:
        """Move the conversation to its successor."""
        conversation = self._held.pop(workflow_id, None)
        if conversation is None:
            return
        self.drop_conversation(heir)
        self._held[heir] = conversation

    def drop_conversation(self, workflow_id: str) -> None:
        if conversation := self._held.pop(workflow_id, None):
            self._bytes -= conversation.weighed

    def _conversation_of(self, workflow_id: str) -> CachedConversation:
        conversation = self._held.setdefault(workflow_id, CachedConversation())
        self._held.move_to_end(workflow_id)
        return conversation

    def _update_size(self, workflow_id: str, conversation: CachedConversation) -> None:
        if self._held.get(workflow_id) is not conversation:
            return  # dropped while it was being filled
        size = conversation.transcript.size + conversation.fed
        self._bytes += size - conversation.weighed
        conversation.weighed = size
        while self._bytes > self._max_bytes and len(self._held) > 1:
            self.drop_conversation(next(iter(self._held)))

    def _follow_live(self, conversation: CachedConversation, wanted: TranscriptCursor) -> bool:
        live = self._live.get(wanted.run_id)
        if live is None or live.head_at(wanted.length) != wanted.head:
            return False
        return conversation.follow_live(live, wanted.length)

    async def _refill_from_run(self, conversation: CachedConversation, wanted: TranscriptCursor) -> None:
        """Load the missing parts after the known prefix; if the hash does not match, load everything."""
        for keep in dict.fromkeys((min(conversation.transcript.length, wanted.length), 0)):
            conversation.truncate(keep)
            conversation.forget_fed()
            await self._load_pages(conversation, wanted)
            if conversation.transcript.head_at(wanted.length) == wanted.head:
                conversation.truncate(wanted.length)
                return
        conversation.truncate(0)
        raise TranscriptMismatchError(
            f"{wanted.workflow_id} has no transcript of {wanted.length} parts, hash {wanted.head}"
        )

    async def _load_pages(self, conversation: CachedConversation, wanted: TranscriptCursor) -> None:
        transcript = conversation.transcript
        handle = self._client.get_workflow_handle(wanted.workflow_id, run_id=wanted.run_id)
        while transcript.length < wanted.length and not self._follow_live(conversation, wanted):
            if activity.in_activity() and activity.info().is_local and own_workflow_id() == wanted.workflow_id:
                # The run answers no query before its own workflow task ends.
                raise ApplicationError("the run cannot be asked now", category=ApplicationErrorCategory.BENIGN)
            before = transcript.length
            page = await handle.query("transcript", {"from": before}, result_type=TranscriptPage)
            for segment in page.segments:
                if segment.end > transcript.length:
                    store = self._stores.of(segment.owner or run_id_of_workflow(wanted.workflow_id))
                    _append_from(transcript, segment.start, await read_segment(store, segment))
            _append_from(transcript, page.start, page.parts)
            if transcript.length == before:
                return


def _append_from(transcript: Transcript, start: int, parts: list[Part]) -> None:
    for part in parts[max(transcript.length - start, 0) :]:
        transcript.append(part)


async def read_segment(store: Store, segment: Segment) -> list[Part]:
    """Read the parts of a segment, or of all segments of a turn's record. Raises StoredFileChangedError."""
    if segment.ref.startswith(_RECORD):
        record = await read_record(store, segment.ref, segment.digest)
        return [part for inner in record.segments for part in await read_segment(store, inner)]
    data = await asyncio.to_thread(store.read, segment.ref)
    if named := _SEGMENT.fullmatch(segment.ref):
        must_have_hash(segment.ref, data, named[1])
    return _PARTS.validate_json(data)


def record_name(run_id: str) -> str:
    return f"{_RECORD}{folder_name(run_id)}.json"


def digest_of_record(record: TurnRecord) -> str:
    return digest(record.model_dump_json().encode(), 16)


async def read_record(store: Store, ref: str, expected: str | None = None) -> TurnRecord:
    """Read a turn's record. Raises FileNotFoundError, and StoredFileChangedError if the digest is not `expected`."""
    data = await asyncio.to_thread(store.read, ref)
    actual = digest(data, 16)
    try:
        record = TurnRecord.model_validate_json(data)
    except ValidationError:
        raise StoredFileChangedError(ref, expected or "a record", actual) from None
    # An earlier version may have written other bytes.
    if expected is not None and expected not in (actual, digest_of_record(record)):
        raise StoredFileChangedError(ref, expected, actual)
    if record_name(record.run_id) != ref:
        raise StoredFileChangedError(ref, ref, record_name(record.run_id), "it is")
    return record


async def write_segment(store: Store, parts: Sequence[Part], start: int, head: str) -> Segment:
    """Write parts [start, start + len(parts)) under the hash of their bytes."""
    data = _PARTS.dump_json(list(parts))
    ref = f"segment-{digest(data, 16)}.json"
    await asyncio.to_thread(store.write, ref, data)
    return Segment(ref=ref, start=start, end=start + len(parts), head=head)
