"""People are notified once of each event, whatever becomes of the run, the channel or the worker."""

import email
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import escape
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from standardwebhooks.webhooks import Webhook as StandardWebhook
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from perdure.contracts.people import NoticeKind, NoticeRoute
from perdure.contracts.tool import Approval
from perdure.features.notices.channels import (
    AppriseSender,
    Channel,
    NoticeSender,
    SlackSender,
    WebhookSender,
    channels_of,
    format_slack_message,
)
from perdure.features.notices.contract import Notice
from perdure.features.notices.rules import CutOffRun, cut_off_request
from perdure.features.reconciler.activities import ReconcileQueries, Reconciler
from perdure.features.reconciler.contract import Place, ReconcileRequest
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.script import FINISH

SECRET = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
ASK = calls(("ask_human", {"question": "Which one?", "options": ["a", "b"]}))
ENDS = (NoticeKind.ended, NoticeKind.failed, NoticeKind.budget)


class Receiver:
    """A real server that keeps the requests, and answers the first ones with `statuses`."""

    def __init__(self, statuses: list[int]) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(statuses.pop(0) if statuses else 204)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def read_kinds(self) -> list[str]:
        return [json.loads(body)["type"] for _, body in self.requests]


@contextmanager
def receiving(*statuses: int) -> Iterator[Receiver]:
    receiver = Receiver(list(statuses))
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


def add_channel(it: World, sender: NoticeSender, *on: NoticeKind, patience: float = 3600, agents: str = "*") -> None:
    route = NoticeRoute(channel=f"c{len(channels_of(it.project))}", on=on, patience=timedelta(seconds=patience))
    channels = (*channels_of(it.project), Channel(route, (agents,), sender))
    it.project = replace(it.project, parts={"notices": channels}, page_url="https://perdure.test/")


async def test_a_question_and_the_end_are_announced_once_signed_and_with_a_link(world: MakeWorld) -> None:
    with receiving() as receiver:
        async with world([ASK, FINISH], works=False) as it, httpx.AsyncClient() as client:
            add_channel(it, WebhookSender(receiver.url, SECRET, client), NoticeKind.waiting, *ENDS)
            async with it.worker():
                run = await it.start()
                await it.until(lambda: len(receiver.requests) == 1)
                headers, body = receiver.requests[0]
                read = StandardWebhook(SECRET).verify(body, headers)
                run_id = run.id.removeprefix("run:")
                assert read["type"] == "run.waiting"
                assert read["data"]["options"] == ["a", "b"]
                assert read["data"]["text"] == "Which one?"
                assert read["data"]["link"] == f"https://perdure.test/#{run_id}"
                assert headers["webhook-id"] == f"notice:{run_id}:q1:waiting:waiting:c0"
                await it.answer(run, text="b")
                await run.result()
                await it.until(lambda: len(receiver.requests) == 2)
            assert receiver.read_kinds() == ["run.waiting", "run.ended"]
            await it.replay()


async def test_a_channel_that_is_down_holds_nothing_up_and_gets_the_same_id_again(world: MakeWorld) -> None:
    with receiving(503, 400) as receiver:
        async with world([FINISH], works=False) as it, httpx.AsyncClient() as client:
            add_channel(it, WebhookSender(receiver.url, SECRET, client), *ENDS)
            async with it.worker():
                await it.run_to_end()
                await it.until(lambda: len(receiver.requests) == 3)
        assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1


async def test_a_worker_that_does_not_know_the_channel_fails_the_notice_and_not_the_run(world: MakeWorld) -> None:
    async with world([FINISH], works=False) as it, httpx.AsyncClient() as client:
        project = it.project
        add_channel(it, WebhookSender("http://127.0.0.1:9/", SECRET, client), NoticeKind.waiting, *ENDS)
        async with it.worker():
            run = await it.run_to_end()
        it.project = project
        async with it.worker():
            notice = it.client.get_workflow_handle(f"notice:{run.id.removeprefix('run:')}:ended")
            with pytest.raises(WorkflowFailureError) as failed:
                await notice.result()
    assert "there is no [[notify]] named c0" in str(failed.value.cause)


@pytest.mark.parametrize("on", [(), (NoticeKind.expired, NoticeKind.failed)])
async def test_a_run_whose_events_no_channel_wants_starts_no_notice(
    world: MakeWorld, on: tuple[NoticeKind, ...]
) -> None:
    async with world([ASK, FINISH], works=False) as it, httpx.AsyncClient() as client:
        sender = WebhookSender("http://127.0.0.1:9/", SECRET, client)
        add_channel(it, sender, *on)
        add_channel(it, sender, *NoticeKind, agents="other-*")
        async with it.worker():
            run = await it.start()
            await it.answer(run, text="b")
            await run.result()
        kinds = {event.event_type async for event in run.fetch_history_events()}
    assert not any("CHILD" in str(kind) for kind in kinds)


async def test_a_question_that_stays_open_is_announced_again_and_an_answered_one_is_not(world: MakeWorld) -> None:
    with receiving() as receiver:
        async with world([ASK, ASK, FINISH], works=False) as it, httpx.AsyncClient() as client:
            add_channel(it, WebhookSender(receiver.url, SECRET, client), NoticeKind.waiting_long, patience=0.3)
            async with it.worker():
                run = await it.start()
                await it.until(lambda: len(receiver.requests) == 1)
                await it.answer(run, question_id="q1", text="b")
                await it.answer(run, question_id="q2", text="b")
                await run.result()
                second = it.client.get_workflow_handle(f"notice:{run.id.removeprefix('run:')}:q2:waiting")
                assert await second.result() == {"delivered": []}
        assert receiver.read_kinds() == ["run.waiting_long"]
        assert json.loads(receiver.requests[0][1])["data"]["question_id"] == "q1"


async def test_an_expired_approval_and_a_failed_run_are_announced(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", lambda *_: "paid", approval=Approval.always, approval_timeout=timedelta(seconds=0.2))
    with receiving() as receiver:
        async with (
            world([calls(("pay", {})), ASK], pay, works=False, hard_limit="2s", soft_limit="1s") as it,
            httpx.AsyncClient() as client,
        ):
            add_channel(it, WebhookSender(receiver.url, SECRET, client), NoticeKind.expired, *ENDS)
            async with it.worker():
                run = await it.start()
                await it.until(lambda: receiver.read_kinds() == ["run.expired"])
                await run.signal("cancel", {"reason": "enough"})
                await it.until(lambda: len(receiver.requests) == 2)
        data = json.loads(receiver.requests[1][1])["data"]
    assert (data["kind"], data["title"]) == ("ended", "default is cancelled")


async def test_a_run_that_is_stuck_is_announced_by_the_reconciler(world: MakeWorld) -> None:
    with receiving() as receiver:
        async with world([FINISH], works=False) as it, httpx.AsyncClient() as client:
            add_channel(it, WebhookSender(receiver.url, SECRET, client), NoticeKind.wedged)
            reconciler = Reconciler(it.client, it.project.stores, it.queue, channels=channels_of(it.project))
            place = Place(namespace="default", task_queue=it.queue)
            server = ReconcileQueries(it.client, place, datetime.now(UTC), repairs=False, since={})
            requests = await reconciler._wedged_notices(server, {"r1": "clerk"})
            assert [route.channel for route in requests[0].routes] == ["c0"]
            async with it.worker():
                for _ in range(2):
                    await it.client.execute_workflow("Notify", requests[0], id="notice:r1:wedged", task_queue=it.queue)
    assert set(receiver.read_kinds()) == {"run.wedged"}


async def test_slack_gets_buttons_that_name_the_question_and_no_text_of_the_model_as_markup(world: MakeWorld) -> None:
    with receiving() as receiver:
        async with world([ASK, FINISH], works=False) as it, httpx.AsyncClient() as client:
            add_channel(it, SlackSender(receiver.url, client), NoticeKind.waiting)
            async with it.worker():
                run = await it.start("<!channel> *go*")
                await it.until(lambda: len(receiver.requests) == 1)
                await it.answer(run, text="b")
                await run.result()
        message = json.loads(receiver.requests[0][1])
    buttons = next(block for block in message["blocks"] if block["type"] == "actions")["elements"]
    assert [button["text"]["text"] for button in buttons] == ["a", "b"]
    assert json.loads(buttons[1]["value"])["option"] == 1


@given(
    st.builds(
        Notice,
        kind=st.sampled_from(NoticeKind),
        run_id=st.text(min_size=1, max_size=60),
        agent=st.text(max_size=60),
        title=st.text(min_size=1, max_size=150),
        text=st.text(max_size=1500),
        options=st.lists(st.text(min_size=1, max_size=75), max_size=9).map(tuple),
        question_id=st.just("q1"),
        asked_at=st.just(datetime(2026, 11, 25, tzinfo=UTC)),
    )
)
def test_a_message_to_slack_keeps_its_limits_and_has_no_markup(notice: Notice) -> None:
    message = format_slack_message(notice, "https://perdure.test/#r1")
    assert len(message["blocks"]) <= 50
    for block in message["blocks"]:
        texts = [block["text"]] if "text" in block else block["elements"]
        for text in texts:
            assert text["type"] in ("plain_text", "button")
            assert len(text.get("value", "")) <= 2000
        assert len(block.get("elements", ())) <= 5


@pytest.mark.filterwarnings("ignore:'imghdr':DeprecationWarning")
async def test_apprise_sends_the_notice_and_reports_a_failure() -> None:
    notice = Notice(kind=NoticeKind.waiting, run_id="r1", agent="a", title="a waits", text="Which one?")
    with receiving() as receiver:
        address = receiver.url.replace("http://", "json://")
        await AppriseSender(address).send(notice, "id", "https://perdure.test/#r1")
        sent = json.loads(receiver.requests[0][1])
        assert sent["title"] == "a waits"
        assert "https://perdure.test/#r1" in sent["message"]
    with pytest.raises(ApplicationError, match="Apprise could not deliver it"):
        await AppriseSender("json://127.0.0.1:9/?cto=1&rto=1").send(notice, "id", "")


HIDING = """pay {
  "note": "<!-- one euro -->
<a href='https://evil.example'>approve here</a> <img src='https://evil.example/seen'>
[approve here](https://evil.example) **free**",
  "cents": 99999900
}"""


class Shown(HTMLParser):
    """The text, the links and the images of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", list[str]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.filterwarnings("ignore:'imghdr':DeprecationWarning")
@pytest.mark.parametrize("form", ["html", "markdown", "text"])
async def test_a_channel_of_any_format_shows_the_text_and_makes_no_markup_of_it(form: str) -> None:
    notice = Notice(kind=NoticeKind.waiting, run_id="r1", agent="a", title="a waits", text=HIDING)
    with receiving() as receiver:
        address = f"{receiver.url.replace('http://', 'json://')}?format={form}"
        await AppriseSender(address).send(notice, "id", "")
        sent = json.loads(receiver.requests[0][1])["message"]
    page = sent if form == "html" else MarkdownIt().render(sent) if form == "markdown" else escape(sent)
    shown = Shown(page)
    assert not {"a", "img", "strong", "!--"} & set(shown.tags), sent
    for line in ("<!-- one euro -->", "<a href='https://evil.example'>", "[approve here]", "**free**", "99999900"):
        assert line in " ".join(shown.text.split()), sent


class MailServer(threading.Thread):
    """A mail server that takes one mail, as text."""

    def __init__(self) -> None:
        super().__init__()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.mail = ""

    def run(self) -> None:
        with self.listener, self.listener.accept()[0] as peer, peer.makefile("rw", newline="\r\n") as lines:
            answer = "220 ready"
            while answer:
                print(answer, file=lines, flush=True)
                match lines.readline()[:4].upper():
                    case "DATA":
                        print("354 go on", file=lines, flush=True)
                        while (line := lines.readline()) not in (".\r\n", ".\n", ""):
                            self.mail += line
                        answer = "250 taken"
                    case "QUIT" | "":
                        answer = ""
                    case _:
                        answer = "250 ok"


@pytest.mark.filterwarnings("ignore:'imghdr':DeprecationWarning")
@pytest.mark.parametrize("form", ["", "&format=html", "&format=text"])
async def test_a_mail_shows_the_text_as_it_is_in_each_of_its_parts(form: str) -> None:
    server = MailServer()
    server.start()
    notice = Notice(kind=NoticeKind.waiting, run_id="r1", agent="a", title="a waits", text=HIDING)
    port = server.listener.getsockname()[1]
    await AppriseSender(f"mailto://127.0.0.1:{port}?from=a@mail.example&to=ann@mail.example{form}").send(
        notice, "id", ""
    )
    server.join()
    parts = [part for part in email.message_from_string(server.mail).walk() if not part.is_multipart()]
    assert parts
    for part in parts:
        written = bytes(part.get_payload(decode=True)).decode()
        shown = Shown(written if part.get_content_subtype() == "html" else escape(written))
        assert {"a", "img"}.isdisjoint(shown.tags)
        assert "<!-- one euro -->" in " ".join(shown.text.split())
        assert "99999900" in shown.text


@pytest.mark.parametrize(
    ("options", "buttons", "others"),
    [
        (["", "  ", "yes"], ["yes"], []),
        (["yes", "yes", "no"], ["yes", "no"], []),
        (["a" * 74 + "b", "a" * 74 + "c", "d" * 76], ["a" * 74 + "b", "a" * 74 + "c"], ["d" * 76]),
        ([f"no {n}" for n in range(7)], [f"no {n}" for n in range(5)], ["no 5", "no 6"]),
        (["to\u202eeno", "a\nb"], ["to[U+202E]eno"], ["a\nb"]),
    ],
)
async def test_an_option_that_is_no_button_stands_in_the_message_and_keeps_nothing_back(
    world: MakeWorld, options: list[str], buttons: list[str], others: list[str]
) -> None:
    ask = calls(("ask_human", {"question": "Which one?", "options": options}))
    with receiving() as receiver:
        async with world([ask, FINISH], works=False) as it, httpx.AsyncClient() as client:
            add_channel(it, SlackSender(receiver.url, client), NoticeKind.waiting)
            async with it.worker():
                run = await it.start()
                await it.until(lambda: len(receiver.requests) == 1)
                asked = (await it.state(run))["question"]["options"]
                await it.answer(run, text=asked[-1])
                await run.result()
    blocks = json.loads(receiver.requests[0][1])["blocks"]
    [row] = [block["elements"] for block in blocks if block["type"] == "actions" and "value" in block["elements"][0]]
    assert [button["text"]["text"] for button in row] == buttons
    assert [asked[json.loads(button["value"])["option"]] for button in row] == buttons
    lines = [block["text"]["text"] for block in blocks if block["type"] == "section"][1:]
    assert lines == (["\n".join(f"or: {option}" for option in others)] if others else [])


async def test_a_message_whose_form_is_refused_is_sent_as_plain_text_with_no_markup(world: MakeWorld) -> None:
    with receiving(400) as receiver:
        ask = calls(("ask_human", {"question": "<!channel> a & b?"}))
        async with world([ask, FINISH], works=False) as it, httpx.AsyncClient() as client:
            add_channel(it, SlackSender(receiver.url, client), NoticeKind.waiting)
            async with it.worker():
                run = await it.start()
                await it.until(lambda: len(receiver.requests) == 2)
    plain = json.loads(receiver.requests[1][1])
    assert (plain.keys(), plain["mrkdwn"]) == ({"text", "mrkdwn"}, False)
    assert "&lt;!channel&gt; a &amp; b?" in plain["text"]
    assert f"run {run.id.removeprefix('run:')}" in plain["text"]


@pytest.mark.parametrize("options", [["x" * 501], [str(number) for number in range(21)], ["\u202e" * 80]])
async def test_options_that_cannot_be_shown_whole_are_refused_with_an_error_for_the_model(
    world: MakeWorld, options: list[str]
) -> None:
    async with world([calls(("ask_human", {"question": "Which one?", "options": options})), FINISH]) as it:
        run = await it.run_to_end()
        assert "`options`: at most 20, of 500 characters each" in (await it.shown(run))[0]


async def test_a_run_that_is_terminated_is_announced_by_the_reconciler_under_the_id_of_its_own_notice(
    world: MakeWorld,
) -> None:
    with receiving() as receiver:
        async with world([ASK], works=False) as it, httpx.AsyncClient() as client:
            add_channel(it, WebhookSender(receiver.url, SECRET, client), *ENDS)
            async with it.worker():
                run = await it.start()
                await it.until_state(run, question=True)
                await run.terminate(reason="not needed any more")
                listed = f"WorkflowId = '{run.id}' AND ExecutionStatus = 'Terminated'"
                await it.until(lambda: has_rows(it, listed))
                for _ in range(2):  # the second pass finds it again, within the delay of the list
                    await it.client.execute_workflow("Reconcile", id=f"reconcile:{it.queue}", task_queue=it.queue)
                await it.until(lambda: len(receiver.requests) == 1)
                notice = it.client.get_workflow_handle(f"notice:{run.id.removeprefix('run:')}:ended")
                await notice.result()
                with pytest.raises(WorkflowAlreadyStartedError):
                    await it.client.start_workflow(
                        "Notify",
                        id=notice.id,
                        task_queue=it.queue,
                        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    )
    data = json.loads(receiver.requests[0][1])["data"]
    assert receiver.read_kinds() == ["run.ended"]
    assert (data["title"], data["text"]) == ("default is terminated", "not needed any more")


async def has_rows(it: World, query: str) -> bool:
    return bool([row async for row in it.client.list_workflows(query)])


async def test_a_run_that_temporal_timed_out_is_announced_as_failed_and_one_that_goes_on_is_not(
    world: MakeWorld,
) -> None:
    async with world([ASK], works=False) as it, httpx.AsyncClient() as client:
        add_channel(it, WebhookSender("http://127.0.0.1:9/", SECRET, client), *ENDS)
        reconciler = Reconciler(it.client, it.project.stores, it.queue, channels=channels_of(it.project))
        async with it.worker():
            event = {"type": "agentic.start", "payload": {"goal": "x"}}
            late = await it.start_raw(event, execution_timeout=timedelta(seconds=2))
            again = await it.start()
            await it.until_state(again, question=True)
            await reset(it, again)
            await it.until(lambda: has_rows(it, f"WorkflowId = '{late.id}' AND ExecutionStatus = 'TimedOut'"))
            await it.until(lambda: has_rows(it, f"WorkflowId = '{again.id}' AND ExecutionStatus = 'Terminated'"))
            report = await reconciler.run_pass()
            next_one = await reconciler.run_pass(ReconcileRequest(cut_off=report.cut_off))
    [request] = report.notices
    assert (request.notice.kind, request.notice.title) == (NoticeKind.failed, "default is timed out")
    assert request.id == f"notice:{late.id.removeprefix('run:')}:failed"
    assert report.cut_off is not None
    assert report.cut_off.before is None
    assert next_one.notices in ((), report.notices)  # within the delay of the list it is found again


async def reset(it: World, run: Run) -> None:
    """Reset the run to its first workflow task, which ends its execution as terminated."""
    await it.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=it.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run.id),
            reason="again",
            workflow_task_finish_event_id=4,
            request_id=run.id,
        ),
        retry=True,
    )


async def test_runs_that_are_too_many_for_a_pass_are_announced_by_the_next_ones(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.features.reconciler.activities.MAX_CUT_OFF", 2)
    async with world([ASK], works=False) as it, httpx.AsyncClient() as client:
        add_channel(it, WebhookSender("http://127.0.0.1:9/", SECRET, client), *ENDS)
        reconciler = Reconciler(it.client, it.project.stores, it.queue, channels=channels_of(it.project))
        runs = [await it.start() for _ in range(5)]
        for run in runs:
            await run.terminate()
        rows = f"TaskQueue = '{it.queue}' AND ExecutionStatus = 'Terminated'"
        await it.until(lambda: has_five(it, rows))
        found, window = set[str](), None
        for _ in range(5):
            report = await reconciler.run_pass(ReconcileRequest(cut_off=window))
            found |= {request.notice.run_id for request in report.notices}
            window = report.cut_off
            if window is not None and window.before is None:
                break
    assert found == {run.id.removeprefix("run:") for run in runs}


async def has_five(it: World, query: str) -> bool:
    return len([row async for row in it.client.list_workflows(query)]) == 5


async def test_a_run_that_has_announced_its_end_is_not_announced_again() -> None:
    routes = (NoticeRoute(channel="c0", on=tuple(NoticeKind)),)
    run = CutOffRun(run_id="r1", agent="a", status="failed", is_timed_out=False, reason="", state=None)
    assert cut_off_request(run, routes) is None
    open_run = cut_off_request(replace(run, status="running"), routes)
    assert open_run is not None
    assert open_run.id == "notice:r1:ended"
