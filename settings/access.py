"""Keys, addresses and headers of model providers, tools and the outbox, checked before use."""

from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from settings.problems import ProjectError

EXPECTED_URL = "expected a URL like http://127.0.0.1:8080 or https://api.anthropic.com"


_OWN_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "content-type", "host", "idempotency-key", "transfer-encoding"}
)


def _check_headers(variables: dict[str, str]) -> dict[str, str]:
    """Return the headers. Raises ValueError for duplicates and headers that Perdure sets itself."""
    seen = set[str]()
    for name in map(str.lower, variables):
        if name in _OWN_HEADERS:
            raise ValueError(f"the header {name} is set by Perdure; leave it out")
        if name in seen:
            raise ValueError(f"duplicate header {name}")
        seen.add(name)
    return variables


HeaderVariables = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")],
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
    ],
    AfterValidator(_check_headers),
]


def check_key(text: str) -> str | None:
    """Return a key, stripped: mounted secrets often end in a line break. Raises ValueError."""
    key = text.strip()
    if not (key.isascii() and key.isprintable()):
        reason = "it contains a line break, a control character or a non-ASCII character"
        raise ValueError(f"expected a key of printable ASCII characters in one line; {reason}")
    return key or None


def must_be_private(place: str, url: str | None, key: str | None) -> None:
    """Raise ProjectError if a key would cross a network unencrypted."""
    if key and url and url.lower().startswith("http://") and not is_loopback(urlsplit(url).hostname or ""):
        raise ProjectError(f"{place}: a key is sent to another machine over https:// only; this address is http://")


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def check_url(text: str) -> str:
    """Return the URL, stripped. Raises ValueError without the URL, which may contain a password."""
    text = text.strip()
    if reason := _url_error(text):
        raise ValueError(f"{EXPECTED_URL}; {reason}")
    return text


def _url_error(text: str) -> str | None:
    if not text.isprintable() or " " in text:
        return "it contains a blank or a control character"
    if not text.lower().startswith(("http://", "https://")):
        return "it does not begin with http:// or https://"
    try:
        host = urlsplit(text).hostname
    except ValueError:
        return "its host is not valid"
    if not host:
        return "it has no host"
    try:
        port = urlsplit(text).port
    except ValueError:
        port = 0
    return "its port is not a number from 1 to 65535" if port == 0 else None


def check_host(text: str) -> str:
    """Return a host of an allow-list (`host`, `*.host` or `host:port`) in lower case. Raises ValueError."""
    bare = text.strip().lower().removeprefix("*.")
    if not bare or "*" in bare or "/" in bare or "@" in bare or _url_error(f"http://{bare}"):
        raise ValueError("expected a host such as example.com, *.example.com or example.com:8443")
    return text.strip().lower()
