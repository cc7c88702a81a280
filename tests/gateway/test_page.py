"""The page in a real browser: what waits is answered there, and a run is watched to its end."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import httpx
import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser import browsing, needs_browser, picture
from tests.gateway.conftest import Gateway, make_token
from tests.gateway.test_access_log import lines
from tests.gateway.test_files import png, upload
from tests.gateway.test_runs import dry_run, wait_for_end
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browsing(tmp_path_factory.mktemp("chromium"), "1280,1000") as started:
        yield started


def until(driver: Any, look: Callable[[], Any]) -> Any:
    wait = WebDriverWait(driver, PATIENCE, poll_frequency=0.1, ignored_exceptions=[WebDriverException, OSError])
    return wait.until(lambda _: look())


def shows(driver: Any, css: str, words: str) -> None:
    try:
        until(driver, lambda: any(words in each.text for each in driver.find_elements(By.CSS_SELECTOR, css)))
    except WebDriverException:
        raise AssertionError(
            f"{words!r} never came in {css}: {driver.find_element(By.TAG_NAME, 'body').text}"
        ) from None


def open_form(driver: Any, gateway: Gateway, run_id: str = "") -> Any:
    """The field for a token, of a browser that is not signed in."""
    driver.get("about:blank")
    driver.get(f"{gateway.url}/")
    driver.delete_all_cookies()
    driver.get("about:blank")
    driver.get(f"{gateway.url}/#{run_id}")
    field = driver.find_element(By.ID, "token")
    until(driver, field.is_displayed)
    return field


def enter(driver: Any, gateway: Gateway, run_id: str = "", token: str = "") -> None:
    open_form(driver, gateway, run_id).send_keys((token or gateway.token) + Keys.ENTER)
    until(driver, driver.find_element(By.ID, "forget").is_displayed)
    driver.get_log("browser")  # drops the 401 by which the page knew that it has no session


@needs_browser
async def test_the_questions_are_filtered(gateway: Gateway, driver: Any) -> None:
    asks, pays = await gateway.waiting("ask: which colour"), await gateway.waiting("charge: the card")
    enter(driver, gateway)
    for run_id in (asks, pays):
        shows(driver, "#waiting .card", run_id)
    driver.find_element(By.CSS_SELECTOR, "#filter-box summary").click()
    driver.find_element(By.CSS_SELECTOR, "#filter [name=tool]").send_keys("charge" + Keys.TAB)
    shows(driver, "#filter-box summary", "Filter (on)")
    until(driver, lambda: asks not in driver.find_element(By.ID, "waiting").text)
    shows(driver, "#waiting .card", pays)
    driver.find_element(By.CSS_SELECTOR, "#filter [name=kind] option[value=question]").click()
    shows(driver, "#waiting", "No such question is open.")
    for run_id in (asks, pays):
        await gateway.post(f"/v1/runs/{run_id}/cancel", {})


@needs_browser
async def test_a_dry_run_lists_its_calls_and_its_plan_is_made_real(gateway: Gateway, driver: Any) -> None:
    run_id = await dry_run(gateway)
    enter(driver, gateway, run_id)
    shows(driver, "#runs li", "dry run, completed")
    shows(driver, "#facts", "dry run, completed")
    shows(driver, "#end", "dry run, completed")
    shows(driver, "#steps", "calls that change something are not made")
    shows(driver, "#dry", "charge (once)")
    shows(driver, "#dry pre", '"amount": 42')
    driver.find_element(By.CSS_SELECTOR, "#dry button").click()
    shows(driver, "#notice", f"started with the plan of {run_id}")
    started = driver.find_element(By.ID, "run-title").text
    assert started != run_id
    shows(driver, "#steps", "a result from outside")  # the charge is made, without a question
    assert driver.find_element(By.ID, "dry").is_displayed() is False
    await gateway.post(f"/v1/runs/{started}/cancel", {})


SHRINK = """
const steps = document.getElementById("steps");
steps.style.maxHeight = "4rem";
steps.scrollTop = steps.scrollHeight;
"""
IS_AT_END = """
const steps = document.getElementById("steps");
return steps.scrollHeight > 2 * steps.clientHeight
  && steps.scrollHeight - steps.scrollTop - steps.clientHeight < 2;
"""


@needs_browser
async def test_a_question_is_answered_and_the_run_is_watched_to_its_end(gateway: Gateway, driver: Any) -> None:
    run_id = await gateway.waiting("ask: which colour")
    enter(driver, gateway, run_id)
    card = f"//article[.//a[text()='{run_id}']]"
    until(driver, lambda: driver.find_element(By.XPATH, card))
    shows(driver, "#waiting pre", "Shall it be red, or blue?")
    shows(driver, "#steps", "waiting")
    driver.execute_script(SHRINK)
    driver.find_element(By.XPATH, f"{card}//input").send_keys("green" + Keys.ENTER)
    shows(driver, "#end", "completed: done")
    assert driver.execute_script(IS_AT_END), "the list of events does not follow the latest one"
    assert "green" in driver.find_element(By.ID, "end").text
    until(driver, lambda: not driver.find_elements(By.XPATH, card))
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


@needs_browser
async def test_an_approval_shows_the_exact_call_and_takes_a_denial(gateway: Gateway, driver: Any) -> None:
    run_id = await gateway.waiting("charge: the card")
    enter(driver, gateway, run_id)
    form = f"answer-{run_id}-q1"
    until(driver, lambda: driver.find_element(By.ID, form))
    shows(driver, "#waiting pre", '"amount": 42')
    shows(driver, "#plan", "1. Charge")
    shows(driver, "#facts", "model")
    for width in (360, 1280):
        driver.set_window_size(width, 1000)
        wide = driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert wide, f"it scrolls sideways at {width} pixels"
    picture(driver, "gateway-page")
    driver.find_element(By.ID, form).find_element(By.CSS_SELECTOR, "[data-option=deny]").click()
    shows(driver, "#end", "completed: done")


@needs_browser
async def test_chosen_calls_are_decided_together(gateway: Gateway, driver: Any) -> None:
    run_id = await gateway.waiting("pair: two cards")
    enter(driver, gateway, run_id)
    for name in ("q1", "q2"):
        until(driver, lambda: driver.find_element(By.ID, f"answer-{run_id}-{name}"))  # noqa: B023 - awaited here
        driver.find_element(By.ID, f"answer-{run_id}-{name}").find_element(By.NAME, "chosen").click()
    driver.find_element(By.CSS_SELECTOR, "[data-chosen=deny]").click()
    shows(driver, "#end", "completed: done")


SHOW = """
Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
performance.clearResourceTimings();
document.dispatchEvent(new Event("visibilitychange"));
"""
LOOKS = "return performance.getEntriesByType('resource').filter((it) => it.name.endsWith('/v1/questions')).length"


@needs_browser
async def test_a_hidden_page_makes_no_requests(gateway: Gateway, driver: Any) -> None:
    """The question that came meanwhile is there once the page is visible."""
    enter(driver, gateway)
    until(driver, lambda: driver.execute_script(LOOKS))
    driver.execute_script(SHOW, True)
    run_id = await gateway.waiting("ask: which colour")
    await asyncio.sleep(10)  # longer than from one look to the next
    assert driver.execute_script(LOOKS) == 0
    driver.execute_script(SHOW, False)
    until(driver, lambda: driver.find_element(By.XPATH, f"//article[.//a[text()='{run_id}']]"))
    await gateway.post(f"/v1/runs/{run_id}/answer", {"text": "red"})


@needs_browser
async def test_a_new_question_is_on_the_page_by_itself_and_an_answered_one_leaves_at_once(
    gateway: Gateway, driver: Any
) -> None:
    enter(driver, gateway)
    until(driver, lambda: driver.execute_script(LOOKS))
    run_id = await gateway.waiting("ask: which colour")
    before, card = driver.execute_script(LOOKS), f"//article[.//a[text()='{run_id}']]"
    until(driver, lambda: driver.find_element(By.XPATH, card))
    assert driver.execute_script(LOOKS) <= before + 2  # with the next look, or with that after one under way
    driver.find_element(By.XPATH, f"{card}//input").send_keys("red" + Keys.ENTER)
    shows(driver, "#notice", f"{run_id}: accepted")
    until(driver, lambda: not driver.find_elements(By.XPATH, card))
    looks = driver.execute_script(LOOKS)
    until(driver, lambda: driver.execute_script(LOOKS) > looks)  # and does not come back
    assert not driver.find_elements(By.XPATH, card)


@needs_browser
async def test_a_wrong_token_is_reported(gateway: Gateway, driver: Any) -> None:
    open_form(driver, gateway).send_keys("pdr_wrong" + Keys.ENTER)
    shows(driver, "#notice", "unknown, expired or revoked")
    assert driver.find_element(By.ID, "token").is_displayed()


STORED = """
return JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, performance.getEntries(),
  document.documentElement.outerHTML, [...document.querySelectorAll("input")].map((it) => it.value), location.href]);
"""


@needs_browser
async def test_a_browser_stays_signed_in_without_the_token_until_it_is_told_to_forget(
    gateway: Gateway, driver: Any
) -> None:
    run_id = await gateway.start()
    enter(driver, gateway, run_id)
    shows(driver, "#end", "completed: done")
    assert gateway.token not in driver.execute_script(STORED)
    assert driver.execute_script("return document.cookie") == ""
    [cookie] = driver.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    driver.refresh()
    shows(driver, "#end", "completed: done")
    assert not driver.find_element(By.ID, "token").is_displayed()
    assert gateway.token not in driver.execute_script(STORED)
    driver.find_element(By.ID, "forget").click()
    until(driver, lambda: driver.find_element(By.ID, "token").is_displayed())
    assert driver.get_cookies() == []
    assert "completed" not in driver.find_element(By.TAG_NAME, "body").text
    driver.get_log("browser")


@needs_browser
async def test_a_session_that_is_over_asks_for_a_token_again(gateway: Gateway, driver: Any) -> None:
    name = f"guest-{uuid4().hex[:8]}"
    token = await asyncio.to_thread(make_token, gateway.project, name, "runs:read")
    enter(driver, gateway, token=token)
    until(driver, lambda: driver.find_elements(By.CSS_SELECTOR, "#runs li"))
    assert (await asyncio.to_thread(gateway.project.perdure, "token", "revoke", name)).code == 0
    shows(driver, "#notice", "the session is over")
    assert driver.find_element(By.ID, "token").is_displayed()
    driver.get_log("browser")


HOSTILE = """<form method="post" action="{address}"></form><script>
fetch("{address}", {{ method: "POST", mode: "no-cors", credentials: "include" }})
  .then(() => document.forms[0].submit());
</script>"""


@needs_browser
async def test_a_page_at_another_port_cannot_act_with_the_cookie(gateway: Gateway, driver: Any, tmp_path: Path) -> None:
    """Which a browser sends with its requests: cookies know no ports."""
    run_id = await gateway.waiting("ask: which colour")
    enter(driver, gateway)
    (tmp_path / "index.html").write_text(HOSTILE.format(address=f"{gateway.url}/v1/runs/{run_id}/cancel"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        driver.get(f"http://127.0.0.1:{server.server_port}/")
        refused = await lines(gateway, 2, reason="cross_site", run_id=run_id)
        server.shutdown()
    assert {line["status"] for line in refused} == {403}
    assert (await gateway.get(f"/v1/runs/{run_id}")).json()["state"]["status"] == "waiting_on_human"
    await gateway.post(f"/v1/runs/{run_id}/cancel", {})
    driver.get_log("browser")


async def test_the_page_is_ours_alone(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as http:
        for path, kind in (("/", "text/html"), ("/page.js", "javascript"), ("/page.css", "text/css")):
            answer = await http.get(path)
            assert kind in answer.headers["Content-Type"]
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert "http://" not in answer.text.replace("http://www.w3.org", "")
            assert "https://" not in answer.text
            assert "style=" not in answer.text
            assert "innerHTML" not in answer.text


PAINTED = """
const canvas = document.querySelector(arguments[0]);
return canvas && [...canvas.getContext("2d").getImageData(1, 1, 1, 1).data].join();
"""


@needs_browser
async def test_images_files_and_a_typed_result_are_on_the_page(gateway: Gateway, driver: Any, tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["total"]}
    stored = (await upload(gateway, png(640), "invoice.png")).json()
    attachments = [{name: stored[name] for name in ("name", "sha256")}]
    payload = {"goal": "count: the invoice", "output_schema": schema, "attachments": attachments}
    run_id = (await gateway.post("/v1/runs", {"payload": payload})).json()["run_id"]
    await wait_for_end(gateway, run_id)
    folder = gateway.project.folder / ".perdure" / "runs" / run_id
    (folder / "artifacts" / "chart & more.png").write_bytes(png(300, "blue"))
    (folder / "artifacts" / "report.md").write_text("# Report\n" * 500)
    enter(driver, gateway, run_id)
    until(driver, lambda: driver.execute_script(PAINTED, "#attached canvas") == "255,0,0,255")
    until(driver, lambda: driver.execute_script(PAINTED, "#files canvas") == "0,0,255,255")
    shows(driver, "#attached", "invoice.png")
    shows(driver, "#files", "report.md · 4.5 kB")
    assert "invoice.png" not in driver.find_element(By.ID, "files").text, "an attached file is on the page twice"
    shows(driver, "#result", '"total": 3')
    for width in (360, 1280):
        driver.set_window_size(width, 1000)
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth"), width
    driver.find_element(By.CSS_SELECTOR, "#files a:has(canvas)").click()
    until(driver, lambda: len(driver.window_handles) == 2)
    first, second = driver.window_handles
    driver.switch_to.window(second)
    until(driver, lambda: driver.execute_script("return document.images[0]?.naturalWidth") == 300)
    driver.close()
    driver.switch_to.window(first)
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    driver.find_element(By.PARTIAL_LINK_TEXT, "report.md").click()
    until(driver, lambda: (tmp_path / "report.md").read_text() == "# Report\n" * 500)
    severe = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    # Others are of the browser's own viewer, and of the token of the test before.
    assert [message for message in severe if not message.startswith("blob:") and "Unauthorized" not in message] == []


@needs_browser
async def test_files_are_sent_with_an_answer_and_shown_where_it_was_given(
    gateway: Gateway, driver: Any, tmp_path: Path
) -> None:
    (tmp_path / "label #1.png").write_bytes(png(64, "lime"))
    (tmp_path / "note.png").write_text("no image")
    run_id = await gateway.waiting("ask: which colour")
    enter(driver, gateway, run_id)
    form = until(driver, lambda: driver.find_element(By.ID, f"answer-{run_id}-q1"))
    form.find_element(By.NAME, "attached").send_keys(str(tmp_path / "note.png"))
    form.find_element(By.XPATH, ".//button[text()='Answer']").click()
    shows(driver, "#notice", "note.png: not an image or a PDF that is taken")
    await gateway.waiting("ask: which size")  # the card of the first stays as it is, with what was chosen
    until(driver, lambda: len(driver.find_elements(By.CSS_SELECTOR, "#waiting form")) >= 2)
    form = driver.find_element(By.ID, f"answer-{run_id}-q1")
    assert form.find_element(By.NAME, "attached").get_property("files")[0]["name"] == "note.png"
    form.find_element(By.XPATH, ".//button[text()='✕ note.png']").click()
    form.find_element(By.NAME, "attached").send_keys(str(tmp_path / "label #1.png"))
    form.find_element(By.NAME, "text").send_keys("as on the label" + Keys.ENTER)
    shows(driver, "#end", "1 seen")
    shows(driver, "#steps", "tester: as on the label")
    until(driver, lambda: driver.execute_script(PAINTED, "#steps canvas") == "0,255,0,255")
    assert not driver.find_element(By.ID, "files-box").is_displayed()
    for width in (360, 1280):
        driver.set_window_size(width, 1000)
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth"), width
