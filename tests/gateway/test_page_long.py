"""Long lists in a real browser: few elements, and one draw a frame. `python -m bench.page` has the times."""

from collections.abc import Iterator
from typing import Any

import pytest

from bench.page.measures import NODES, Browser, measure_bursts, measure_run, measure_runs
from bench.page.server import Site, serving
from tests.browser import browsing, needs_browser

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    profile = tmp_path_factory.mktemp("chromium")
    with serving(Site()) as url, browsing(profile, "1280,1000") as driver:
        yield Browser(driver, url)


def test_a_run_of_2000_steps_has_few_elements_as_time_and_as_conversation(browser: Browser) -> None:
    found = measure_run(browser)
    assert 100 < found["timeline nodes"] <= found["timeline main"] <= NODES
    assert 100 < found["talk nodes"] <= found["talk main"] <= NODES


def test_events_are_drawn_once_a_frame_however_many_come(browser: Browser) -> None:
    found = measure_bursts(browser)
    assert 1 < found["draws"] < 1000  # of 6,837 events; a busy machine draws few
    assert found["draws a frame"] <= 1


def test_a_list_of_10000_runs_is_loaded_whole_and_has_few_elements(browser: Browser) -> None:
    found = measure_runs(browser)
    assert 100 < found["runs nodes"] <= found["runs main"] <= NODES


def test_no_script_of_the_page_fails(browser: Browser) -> None:
    driver: Any = browser.driver
    for place in ("/now", "/run/books-2026-10", "/agents", "/start", "/conversation/books"):
        browser.open(place)
        browser.ask("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
