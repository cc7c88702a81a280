"""A real browser for what people look at. `PERDURE_PICTURES=1` makes the pictures of the docs anew."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on the PATH")
IMAGES = Path(__file__).parents[1] / "docs" / "images"
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update", "--no-proxy-server"),
)


@contextmanager
def browsing(profile: Path, size: str) -> Iterator[Any]:
    """A driver of Chromium, with a profile of its own, in a window of this size ("1500,1200")."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (*QUIET, f"--window-size={size}", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "localhost,127.0.0.1")  # the driver is spoken to over loopback
        started = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield started
    finally:
        started.quit()


def picture(driver: Any, name: str) -> None:
    if os.environ.get("PERDURE_PICTURES"):
        driver.save_screenshot(str(IMAGES / f"{name}.png"))
