"""The tools of the agent on every side: a look-up, a payment, a mail. Plain functions over HTTP, which block.

With the standard library alone, as the peers' workers import it, too. `pay` stops at the moments at which a worker is
killed: the server answers `/at/…` at once, or, if the trial is to be killed there, after the kill.
"""

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

ANSWER_TIMEOUT = 900.0  # seconds: longer than anything waits here, so that no request ends before its process


@dataclass
class Settings:
    """A worker's settings. `variant` is a `bench.crash.trial.Variant`; if it `asks`, a person approves payments."""

    address: str = ""  # of Temporal
    queue: str = ""
    server: str = ""  # of payments
    model: str = ""
    variant: str = "plain"
    asks: bool = False
    home: str = ""  # the folder of the side's own files
    worker: str = ""
    task: str = ""  # what a program without Temporal is to do, which goes on where `queue` names what it began
    is_approved: bool = False  # and whether it is started with a person's approval

    @property
    def is_keyed(self) -> bool:
        return self.variant == "keyed"

    @property
    def is_single(self) -> bool:
        return self.variant == "single"


SETTINGS = Settings()


def look_up(bill: str) -> str:
    """Looks a bill up: what is to be paid, and to whom."""
    return str(_post("/look_up", {"bill": bill})["text"])


def pay(bill: str, cents: int, key: str | None = None) -> str:
    """Pays a bill. With a key, a server that honours keys pays it once, however often it is asked."""
    _post("/at/before", {"bill": bill})
    headers = {} if key is None else {"Idempotency-Key": key}
    receipt = _post("/pay", {"bill": bill, "cents": cents}, headers)["receipt"]
    _post("/at/after", {"bill": bill})
    return str(receipt)


def mail(bill: str, text: str) -> str:
    """Mails the customer about a bill."""
    return str(_post("/mail", {"bill": bill, "text": text})["text"])


def report(**said: Any) -> None:
    """Tell the driver something about this worker."""
    _post("/report", {"worker": SETTINGS.worker, **said})


def _post(path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Raises OSError if the server is gone or refuses."""
    request = urllib.request.Request(  # noqa: S310 - the server is ours, on loopback
        SETTINGS.server + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **(headers or {})},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT) as answer:  # noqa: S310 - as above
        found: dict[str, Any] = json.loads(answer.read())
    return found
