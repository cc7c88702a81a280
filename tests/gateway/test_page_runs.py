"""The page in a real browser: a run is started, watched live to its end, told, stopped, and continued."""

import json
import signal
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from selenium.webdriver.common.keys import Keys

from tests.browser import needs_browser
from tests.gateway.conftest import Gateway, Gateways
from tests.gateway.paging import Page, cancel, card_of, driver, hands, page
from tests.gateway.test_files import png, upload
from tests.gateway.test_runs import dry_run, wait_for_end

__all__ = ["driver", "hands", "page"]  # fixtures

SIZE_OF = "return document.querySelector(arguments[0])?.naturalWidth"
BARS = '[aria-label="turns, calls and waits"] button'
IS_INSIDE = """
return [...document.querySelectorAll(arguments[0])].every((track) => {
  const [outer, inner] = [track, track.querySelector(".bar")].map((it) => it.getBoundingClientRect());
  return inner.width >= 2 && inner.left >= outer.left - 1 && inner.right <= outer.right + 1;
});
"""


def bars_of(page: Page) -> list[str]:
    """The labels of the bars of the timeline."""
    return [str(each.get_attribute("aria-label")) for each in page.all(BARS)]


def run_at(page: Page, other_than: str = "") -> str:
    """The run whose screen is shown, once it is another."""

    def run_id() -> str:
        _, _, shown = page.driver.current_url.partition("#/run/")
        found = shown.partition("/")[0]
        return "" if found == other_than else found

    return str(page.until(run_id))


def downloads_to(page: Page, folder: Path) -> None:
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})


async def send_result(gateway: Gateway, run_id: str, tool: str) -> None:
    payload = {"run_id": run_id, "step": 1, "tool": tool, "status": "ok", "result": "in Bern"}
    body = {"payload": payload, "nonce": await gateway.nonce(run_id)}
    assert (await gateway.post(f"/v1/runs/{run_id}/tool-results", body)).status_code == 202


# ---- watched


@needs_browser
async def test_a_run_is_watched_live_to_its_end_as_time(page: Page) -> None:
    """A bar for each turn, call and wait; those that are open say so."""
    gateway = page.gateway
    run_id = await gateway.waiting("charge: the card")
    page.open_run(run_id)
    page.until(lambda: any("asks a person" in each and "so far" in each for each in bars_of(page)))
    page.press("plan", ".run-head")
    page.shows("1. Charge", ".run-head")
    page.press("approve", card_of(run_id))
    page.until(lambda: page.all(".bar.call + .bar.wait.open"))  # handed out, it waits for its result
    assert any(each.startswith("charge") and "so far" in each for each in bars_of(page))
    page.until(lambda: not page.all(card_of(run_id)))
    await send_result(gateway, run_id, "charge")
    page.shows("done in Bern", ".end.completed")
    labels = bars_of(page)
    assert [each.split(":")[0] for each in labels] == ["plan", "asks a person", "charge", "reflect"]
    assert "tester: approve" in labels[1]
    assert not any("so far" in each for each in labels)
    assert page.driver.execute_script(IS_INSIDE, BARS)
    page.all(BARS)[2].click()
    page.shows("in Bern", '[aria-label="charge, in full"]')


@needs_browser
async def test_a_question_is_answered_and_the_conversation_follows_the_latest(hands: Page) -> None:
    run_id = await hands.gateway.waiting("ask: which colour")
    hands.open_run(run_id, "talk")
    card = card_of(run_id, "The agent asks")
    hands.shows("Shall it be red, or blue?", card)
    hands.until(lambda: hands.all(".talk"))
    hands.driver.execute_script("document.querySelector('.talk').style.maxHeight = '4rem'")
    hands.driver.execute_script("document.querySelector('.talk').scrollTop = 1e6")
    hands.write("answer", "green" + Keys.ENTER, card)
    hands.shows("done", ".end.completed")
    hands.shows("green", ".end")
    hands.shows("tester: green", ".talk")
    hands.until(lambda: not hands.all(card))
    end = "const it = document.querySelector('.talk'); return it.scrollHeight - it.scrollTop - it.clientHeight"
    assert hands.driver.execute_script(end) < 2, "the conversation does not follow the latest"


@needs_browser
async def test_a_calls_table_names_who_let_each_be_made(page: Page) -> None:
    """Also while the run waits on, before it tells that the question has closed."""
    gateway = page.gateway
    run_id = await gateway.waiting("charge: the card")
    assert (await gateway.post(f"/v1/runs/{run_id}/answer", {"decision": "approve"})).status_code == 200
    page.open_run(run_id, "calls")
    page.shows("tester: approve", "td:last-child")
    await send_result(gateway, run_id, "charge")
    page.shows("in Bern", "td")
    page.driver.refresh()
    page.shows("tester: approve", "td:last-child")


@needs_browser
async def test_a_stream_outlives_the_gateway_that_was_killed(page: Page, gateways: Gateways) -> None:
    """The page goes on by itself, in the same session: nobody loads it again."""
    with gateways.open() as first:
        run_id = await first.waiting("ask: which colour")
        here = Page(page.driver, first)
        here.open_run(run_id)
        here.until(lambda: any("so far" in each for each in bars_of(here)))
        here.driver.execute_script("window.isKept = true")
        first.process.send_signal(signal.SIGKILL)
        here.shows("The stream is broken")
    with gateways.open("--port", str(urlsplit(first.url).port)) as second:
        assert second.url == first.url
        here.drops("The stream is broken")
        here.write("answer", "red" + Keys.ENTER, card_of(run_id))
        here.shows("done", ".end.completed")
        assert not any("so far" in each for each in bars_of(here))
        assert here.driver.execute_script("return window.isKept")
        here.driver.get("about:blank")


@needs_browser
async def test_a_record_of_a_run_is_downloaded(page: Page, tmp_path: Path) -> None:
    run_id = await page.gateway.start()
    await wait_for_end(page.gateway, run_id)
    downloads_to(page, tmp_path)
    page.open_run(run_id)
    page.press("Record")
    record = page.until(lambda: json.loads((tmp_path / f"{run_id}.json").read_text(encoding="utf-8")))
    assert run_id in json.dumps(record)


# ---- acted upon


@needs_browser
async def test_a_run_is_cancelled_when_asked_twice(hands: Page) -> None:
    run_id = await hands.gateway.waiting("lookup: the parcel", "waiting_on_tool")
    hands.open_run(run_id)
    hands.press("Cancel")
    hands.press("no", '[aria-label="cancel the run"]')
    hands.press("Cancel")
    hands.press("cancel the run")
    hands.shows("cancelled", ".end")
    assert (await wait_for_end(hands.gateway, run_id))["status"] == "cancelled"
    assert not hands.named("Cancel")


@needs_browser
async def test_an_agent_is_told_something_for_its_next_turn(hands: Page) -> None:
    gateway = hands.gateway
    run_id = await gateway.waiting("lookup: the parcel", "waiting_on_tool")
    hands.open_run(run_id)
    hands.press("Tell it", ".actions")
    hands.write("A message to the agent, for its next turn", "mind the dog", "form.say")
    hands.press("Tell it", "form.say")
    hands.until(lambda: not hands.all("form.say"))
    await send_result(gateway, run_id, "lookup")
    hands.shows("done", ".end.completed")
    assert "mind the dog" in (await gateway.get(f"/v1/runs/{run_id}/record")).text


@needs_browser
async def test_a_run_that_ended_is_forked_and_started_again(page: Page) -> None:
    gateway = page.gateway
    run_id = await gateway.waiting("lookup: the parcel", "waiting_on_tool")
    await send_result(gateway, run_id, "lookup")
    await wait_for_end(gateway, run_id)
    page.open_run(run_id)
    page.press("Fork")
    page.write("a message to the fork", "once more", "form.say")
    page.press("Fork", "form.say")
    fork = run_at(page, run_id)
    page.shows(run_id, ".run-head")  # from which it goes on
    page.shows("completed", ".end")
    assert "once more" in (await gateway.get(f"/v1/runs/{fork}/record")).text
    page.press("Start again")
    assert "once more" in page.wait_for("goal *").get_attribute("value")


@needs_browser
async def test_a_dry_run_lists_its_calls_and_its_plan_is_made_real(page: Page) -> None:
    run_id = await dry_run(page.gateway)
    page.open_run(run_id, "talk")
    page.shows("dry run, completed", ".run-head")
    page.shows("dry run, completed", ".end h3")
    page.shows("calls that change something are not made", ".talk")
    page.shows("charge (once)", ".dry")
    page.shows("42", ".dry")
    page.press("Make the chosen calls")
    started = run_at(page, run_id)
    page.shows("waiting on tool", ".run-head")  # the charge is made, without a question
    assert not page.all(".dry")
    assert "dry run" not in page.text
    await cancel(page.gateway, started)


# ---- files


@needs_browser
async def test_a_run_is_started_with_a_file(hands: Page, tmp_path: Path) -> None:
    (tmp_path / "label #1.png").write_bytes(png(64, "lime"))
    hands.open("start")
    hands.write("goal *", "say: what is on the label")
    hands.attach("Attach images and PDF to the goal", tmp_path / "label #1.png")
    hands.shows("label #1.png", "form")
    hands.press("Start", "form")
    run_at(hands)
    hands.shows("1 model turn", ".run-head")  # of the end, not of the start
    hands.shows("1 seen", ".end.completed")
    hands.until(lambda: hands.driver.execute_script(SIZE_OF, ".run-head img") == 64)


@needs_browser
async def test_a_start_takes_the_agents_own_input_by_its_form(hands: Page) -> None:
    hands.open("start")
    hands.choose("agent", "clerk")
    hands.write("goal *", "say: stamp it")
    hands.write("sheet", "7")
    hands.press("dry run: make reads…")
    hands.press("Start a dry run", "form")
    run_id = run_at(hands)
    hands.shows("dry run, ", ".end")
    assert '"sheet": 7' in json.dumps((await hands.gateway.get(f"/v1/runs/{run_id}/record")).json())


@needs_browser
async def test_images_files_and_a_typed_result_are_on_the_page(page: Page, tmp_path: Path) -> None:
    gateway = page.gateway
    schema = {"type": "object", "required": ["total"]}
    stored = (await upload(gateway, png(640), "invoice.png")).json()
    attachments = [{name: stored[name] for name in ("name", "media_type", "sha256")}]
    payload = {"goal": "count: the invoice", "output_schema": schema, "attachments": attachments}
    run_id = (await gateway.post("/v1/runs", {"payload": payload})).json()["run_id"]
    await wait_for_end(gateway, run_id)
    folder = gateway.project.folder / ".perdure" / "runs" / run_id
    (folder / "artifacts" / "chart & more.png").write_bytes(png(300, "blue"))
    (folder / "artifacts" / "report.md").write_text("# Report\n" * 500)
    page.open_run(run_id, "files")
    page.shows("total", ".end")
    page.shows("3", ".end .fields")
    page.until(lambda: page.driver.execute_script(SIZE_OF, 'img[alt="invoice.png"]') == 640)
    page.until(lambda: page.driver.execute_script(SIZE_OF, 'img[alt="chart & more.png"]') == 300)
    page.shows("report.md 4.5 kB")
    assert page.text.count("invoice.png") == 1, "an attached file is on the page twice"
    page.fits(360, 1280)
    page.press("chart & more.png…")
    page.until(lambda: len(page.driver.window_handles) == 2)
    first, second = page.driver.window_handles
    page.driver.switch_to.window(second)
    page.until(lambda: page.driver.execute_script("return document.images[0]?.naturalWidth") == 300)
    page.driver.close()
    page.driver.switch_to.window(first)
    downloads_to(page, tmp_path)
    page.press("report.md…")
    page.until(lambda: (tmp_path / "report.md").read_text() == "# Report\n" * 500)


@needs_browser
async def test_files_are_sent_with_an_answer_and_shown_where_it_was_given(page: Page, tmp_path: Path) -> None:
    gateway = page.gateway
    (tmp_path / "label #1.png").write_bytes(png(64, "lime"))
    (tmp_path / "note.png").write_text("no image")
    run_id = await gateway.waiting("ask: which colour")
    page.open()
    card, files = card_of(run_id), f"Attach images and PDF to the answer for {run_id}"
    page.attach(files, tmp_path / "note.png")
    page.press("Answer", card)
    page.shows("note.png: not an image or a PDF that is taken", card)
    other = await gateway.waiting("ask: which size")  # the card of the first stays as it is, with what was chosen
    page.until(lambda: page.all(card_of(other)))
    page.press("✕ note.png", card)
    page.attach(files, tmp_path / "label #1.png")
    page.write("answer", "as on the label" + Keys.ENTER, card)
    page.until(lambda: not page.all(card))
    page.open_run(run_id, "talk")
    page.shows("1 seen", ".end")
    page.shows("tester: as on the label", ".talk")
    page.until(lambda: page.driver.execute_script(SIZE_OF, ".talk img") == 64)
    page.fits(360, 1280)
    await cancel(gateway, other)


# ---- conversations


@needs_browser
async def test_a_chat_goes_on_where_it_was_after_a_reload_in_mid_answer(hands: Page) -> None:
    conversation = f"chat-{uuid4().hex[:8]}"
    hands.open(f"conversation/{conversation}")
    hands.shows("This conversation is new")
    hands.write("message", "slow: tell a tale" + Keys.ENTER)
    hands.shows("Once upon a time.", ".active")
    hands.driver.refresh()
    hands.shows("Once upon a time.", ".active")
    hands.until(lambda: not hands.all(".active"))
    hands.shows("done", ".turns")
    assert hands.text.count("slow: tell a tale") == 1
    hands.driver.refresh()
    hands.shows("done", ".turns")
