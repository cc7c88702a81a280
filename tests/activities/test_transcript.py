"""The worker's cache: what it was fed it need not ask for, and what it gives out is always the run's own transcript."""

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client

from perdure.activities.model.transcript_cache import (
    TranscriptCache,
    TranscriptCursor,
    TranscriptMismatchError,
    write_segment,
)
from perdure.activities.model.turn import rename_used_ids
from perdure.activities.providers.port import ModelReply
from perdure.activities.storage.store import LocalStore, LocalStores
from perdure.contracts.run.transcript import Part, PartKind, Segment, TranscriptPage
from perdure.contracts.run.turn import Usage
from perdure.contracts.tool import ToolOutcome
from perdure.decisions.run.transcript import Transcript, goal_part, note_part, result_part


def reply(number: int, *uses: str) -> Part:
    content: list[dict[str, Any]] = [{"type": "text", "text": f"turn {number}"}]
    content += [{"type": "tool_use", "id": use, "name": "look", "input": {}} for use in uses]
    return Part(kind=PartKind.reply, content=content)


def result(use: str) -> Part:
    return result_part(use, "look", 1, ToolOutcome(result=f"result of {use}"))


class FakeRun:
    """Stands for the server and the run behind it: answers the query `transcript`, and counts."""

    def __init__(self, base: int = 0, head: str = "", segments: tuple[Segment, ...] = ()) -> None:
        self.transcript = Transcript(base, head)
        self.segments = segments
        self.asked: list[int] = []

    def get_workflow_handle(self, workflow_id: str, *, run_id: str) -> "FakeRun":
        return self

    async def query(self, name: str, asked: dict[str, int], *, result_type: type) -> TranscriptPage:
        self.asked.append(asked["from"])
        page = self.transcript.page(asked["from"], None, self.segments)
        return TranscriptPage.model_validate_json(page.model_dump_json())

    def add(self, *parts: Part) -> None:
        for part in parts:
            self.transcript.append(part)


def store_of(root: Path) -> LocalStore:
    store = LocalStores(root).of("w")
    store.workspace.create()
    return store


class CachingWorker:
    def __init__(self, run: FakeRun, root: Path, max_bytes: int = 10**9) -> None:
        self.run, self.store = run, store_of(root)
        self.cache = TranscriptCache(cast("Client", run), LocalStores(root), max_bytes)

    async def at(self, length: int | None = None, workflow: str = "w") -> list[dict[str, Any]]:
        length = self.run.transcript.length if length is None else length
        head = self.run.transcript.head_at(length) or ""
        found = await self.cache.read_conversation(TranscriptCursor(workflow, "r", length, head))
        assert found.transcript.length == length
        assert found.transcript.head == head
        return found.model_view().messages


@pytest.fixture
def run() -> FakeRun:
    run = FakeRun()
    run.add(goal_part("see", {}))
    return run


@pytest.fixture
def worker(run: FakeRun, tmp_path: Path) -> CachingWorker:
    return CachingWorker(run, tmp_path)


async def test_a_worker_that_did_all_the_work_asks_only_once(run: FakeRun, worker: CachingWorker) -> None:
    await worker.at()
    for turn in range(5):
        uses = [f"{turn}-{n}" for n in range(3)]
        worker.cache.feed_reply("w", reply(turn, *uses))
        for use in reversed(uses):  # they finish in any order
            worker.cache.feed_result("w", use, result(use))
        run.add(reply(turn, *uses), *(result(use) for use in uses))
        messages = await worker.at()
    assert run.asked == [0]
    assert [block["tool_use_id"] for block in messages[-1]["content"]] == ["4-0", "4-1", "4-2"]


async def test_a_worker_that_missed_something_asks_from_the_longest_prefix_it_has(
    run: FakeRun, worker: CachingWorker
) -> None:
    await worker.at()
    run.add(reply(0, "a"), result("a"), note_part("elsewhere"))
    await worker.at()
    worker.cache.feed_reply("w", reply(1, "b"))
    run.add(reply(1, "b"), result("b"))  # the call was made by another worker
    await worker.at()
    assert run.asked == [0, 1, 4]


async def test_what_a_run_in_the_workers_memory_knows_is_not_asked_of_it(run: FakeRun, worker: CachingWorker) -> None:
    worker.cache.share_live("r", run.transcript)
    await worker.at()
    run.add(reply(0, "a"), result("a"), note_part("a person's answer"))
    length = run.transcript.length
    run.add(note_part("and the run goes on meanwhile"))
    assert (await worker.at(length))[-1]["content"][-1]["text"] == "a person's answer"
    assert run.asked == []


async def test_a_worker_has_the_parts_of_a_run_in_its_memory_once(run: FakeRun, worker: CachingWorker) -> None:
    worker.cache.share_live("r", run.transcript)
    await worker.at()
    worker.cache.feed_reply("w", reply(0, "a"))
    worker.cache.feed_result("w", "a", result("a"))
    run.add(reply(0, "a"), result("a"))
    await worker.at()
    held = worker.cache._held["w"]
    assert all(ours is its for ours, its in zip(held.transcript.parts, run.transcript.parts, strict=True))
    assert (held.reply, held.results) == (None, {})
    assert held.weighed == run.transcript.size == worker.cache._bytes
    run.add(reply(1, "b"))  # one that was read of the run is not asked again where it has left the memory
    worker.cache.feed_reply("w", reply(1, "b"))
    worker.cache._live.clear()
    await worker.at()
    assert run.asked == []


async def test_a_run_in_memory_that_was_reset_takes_its_own_way(run: FakeRun, worker: CachingWorker) -> None:
    worker.cache.share_live("r", run.transcript)
    run.add(reply(0, "a"), result("a"))
    await worker.at()
    run.transcript.truncate(1)
    run.add(reply(0, "other"), result("other"), reply(1))
    messages = await worker.at()
    assert messages[1]["content"][1]["id"] == "other"
    assert run.asked == []


async def test_a_run_that_is_in_no_memory_any_more_is_asked(run: FakeRun, worker: CachingWorker) -> None:
    evicted = Transcript()
    worker.cache.share_live("r", evicted)
    del evicted
    await worker.at()
    assert run.asked == [0]


async def test_of_a_run_in_memory_only_what_lies_in_the_store_is_asked(tmp_path: Path) -> None:
    parts = [goal_part("see", {}), reply(0, "a"), result("a")]
    whole = FakeRun()
    whole.add(*parts)
    segment = await write_segment(store_of(tmp_path), parts, 0, whole.transcript.head)
    run = FakeRun(segment.end, segment.head, (segment,))
    run.add(note_part("after the rotation"))
    worker = CachingWorker(run, tmp_path)
    worker.cache.share_live("r", run.transcript)
    await worker.at()
    run.add(reply(1, "b"), result("b"))
    await worker.at()
    assert run.asked == [0]


async def test_the_rendered_messages_grow_and_what_was_rendered_stays(run: FakeRun, worker: CachingWorker) -> None:
    first = [dict(message) for message in await worker.at()]
    run.add(reply(0, "a"), result("a"))
    assert (await worker.at())[: len(first)] == first


async def test_a_reply_that_the_run_did_not_keep_is_forgotten(run: FakeRun, worker: CachingWorker) -> None:
    await worker.at()
    worker.cache.feed_reply("w", reply(0))
    run.add(note_part("Your reply was empty."))
    messages = await worker.at()
    assert [message["role"] for message in messages] == ["user"]


async def test_a_turn_that_is_tried_again_replaces_what_was_fed(run: FakeRun, worker: CachingWorker) -> None:
    await worker.at()
    worker.cache.feed_reply("w", reply(0, "lost"))
    worker.cache.feed_result("w", "lost", result("lost"))
    worker.cache.feed_reply("w", reply(0, "kept"))
    worker.cache.feed_result("w", "kept", result("kept"))
    run.add(reply(0, "kept"), result("kept"))
    await worker.at()
    assert run.asked == [0]


async def test_an_earlier_point_can_be_asked_for_again(run: FakeRun, worker: CachingWorker) -> None:
    run.add(reply(0, "a"), result("a"), reply(1))
    whole = len(await worker.at())
    assert len(await worker.at(1)) == 1
    assert len(await worker.at()) == whole


async def test_a_run_that_was_reset_is_read_again(run: FakeRun, worker: CachingWorker) -> None:
    run.add(reply(0, "a"), result("a"))
    await worker.at()
    run.transcript.truncate(1)
    run.add(reply(0, "other"), result("other"), reply(1))
    messages = await worker.at()
    assert messages[1]["content"][1]["id"] == "other"


async def test_a_transcript_that_the_run_does_not_have_is_refused(run: FakeRun, worker: CachingWorker) -> None:
    for length, head in ((1, "wrong"), (5, run.transcript.head)):
        with pytest.raises(TranscriptMismatchError):
            await worker.cache.read_conversation(TranscriptCursor("w", "r", length, head))
    assert len(await worker.at()) == 1


async def test_large_conversations_come_in_pages(run: FakeRun, worker: CachingWorker) -> None:
    run.add(*(note_part(str(n) + "x" * 400_000) for n in range(7)))
    (message,) = await worker.at()
    assert len(message["content"]) == 8
    assert len(run.asked) >= 4
    assert Counter(run.asked).most_common(1)[0][1] == 1


async def test_closed_segments_are_read_from_the_store(tmp_path: Path) -> None:
    parts = [goal_part("see", {}), reply(0, "a"), result("a"), reply(1, "b"), result("b")]
    whole = Transcript()
    store = store_of(tmp_path)
    segments = []
    for start, end in ((0, 2), (2, 4)):
        for part in parts[start:end]:
            whole.append(part)
        segments.append(await write_segment(store, parts[start:end], start, whole.head))
    run = FakeRun(4, whole.head, tuple(segments))
    run.add(parts[4])
    messages = await CachingWorker(run, tmp_path).at()
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert run.asked == [0]


async def test_a_segment_that_was_changed_in_the_store_is_noticed(tmp_path: Path) -> None:
    head = Transcript()
    head.append(goal_part("see", {}))
    segment = await write_segment(store_of(tmp_path), [goal_part("do harm", {})], 0, head.head)
    run = FakeRun(1, head.head, (segment,))
    run.add(note_part("go on"))
    with pytest.raises(TranscriptMismatchError):
        await CachingWorker(run, tmp_path).at()


async def test_above_its_size_the_cache_drops_what_was_used_longest_ago(run: FakeRun, tmp_path: Path) -> None:
    run.add(note_part("x" * 1000))
    worker = CachingWorker(run, tmp_path, max_bytes=3000)
    for workflow in ("a", "b", "a", "c", "a", "b"):
        await worker.at(workflow=workflow)
    assert len(run.asked) == 4  # a, b, c, and b again

    worker.cache.drop_conversation("a")
    await worker.at(workflow="a")
    assert len(run.asked) == 5


async def test_what_a_worker_was_fed_for_other_workers_turns_counts_and_is_dropped(
    run: FakeRun, tmp_path: Path
) -> None:
    cache = CachingWorker(run, tmp_path, max_bytes=10_000).cache
    for number in range(200):
        cache.feed_result(f"w{number}", "use", result("use"))
    assert 0 < len(cache._held) < 150
    assert cache._bytes == sum(held.weighed for held in cache._held.values()) <= 10_000


async def test_a_conversation_that_is_dropped_while_it_is_filled_leaves_no_weight(
    run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = CachingWorker(run, tmp_path)
    asked = run.query

    async def dropping(name: str, body: dict[str, int], *, result_type: type) -> TranscriptPage:
        worker.cache.drop_conversation("w")
        return await asked(name, body, result_type=result_type)

    monkeypatch.setattr(run, "query", dropping)  # the moment between two awaits, made certain
    await worker.at()
    assert worker.cache._bytes == 0


@pytest.mark.parametrize("used", [{"call_0"}, {"call_0", "call_0_t3"}, {"call_0", "call_0_t3", "call_0_t3_t3"}])
def test_a_tool_use_id_that_was_there_before_gets_a_name_that_was_not(used: set[str]) -> None:
    """Also in a fork, whose turns are counted anew."""
    uses: list[dict[str, Any]] = [
        {"type": "tool_use", "id": use, "name": "look", "input": {}} for use in ("call_0", "call_1", "call_1_t3")
    ]
    after = rename_used_ids(ModelReply(uses, "tool_use", "m", Usage(), ("call_0",)), used, 3)
    first, *others = [block["id"] for block in after.content]
    assert first not in used
    assert (others, after.broken) == (["call_1", "call_1_t3"], (first,))
