"""How a model's provider, a tool or the outbox is reached: keys and addresses, looked at before anybody is asked."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from settings.problems import ProjectError

EXPECTED = "expected a URL like http://127.0.0.1:8080 or https://api.anthropic.com"


_OWN_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "content-type", "host", "idempotency-key", "transfer-encoding"}
)


def _checked_headers(variables: dict[str, str]) -> dict[str, str]:
    """Raises ValueError for headers that are Perdure's own to set, or that are there twice."""
    seen = set[str]()
    for name in map(str.lower, variables):
        if name in _OWN_HEADERS:
            raise ValueError(f"the header {name} is set by Perdure; leave it out")
        if name in seen:
            raise ValueError(f"the header {name} is there twice")
        seen.add(name)
    return variables


HeaderVariables = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")],
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
    ],
    AfterValidator(_checked_headers),
]


def key_of(env: Mapping[str, str], variable: str) -> str | None:
    """A file of a mounted secret often ends in a line break. Raises ProjectError, which never has the key in it."""
    key = env.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        amiss = "a line break, a control character or a letter beyond ASCII is in it"
        raise ProjectError(f"{variable}: expected a key of printable ASCII characters in one line; {amiss}")
    return key or None


def base_url_of(env: Mapping[str, str], variable: str) -> str | None:
    """Raises ProjectError."""
    if not env.get(variable):
        return None
    try:
        return checked_url(env[variable])
    except ValueError as error:
        raise ProjectError(f"{variable}: {error}") from None


def must_be_private(where: str, url: str | None, key: str | None) -> None:
    """Raises ProjectError where a key would cross a network that others can listen to."""
    if key and url and url.lower().startswith("http://") and not _is_loopback(urlsplit(url).hostname or ""):
        raise ProjectError(f"{where}: a key goes to another machine by https:// only; this address is http://")


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def checked_url(text: str) -> str:
    """Raises ValueError: what is wrong, without the URL, which may have a password in it."""
    text = text.strip()
    if wrong := _fault_of(text):
        raise ValueError(f"{EXPECTED}; {wrong}")
    return text


def _fault_of(text: str) -> str | None:
    if not text.isprintable() or " " in text:
        return "a blank or a control character is in it"
    if not text.lower().startswith(("http://", "https://")):
        return "this one does not begin with http:// or https://"
    try:
        host = urlsplit(text).hostname
    except ValueError:
        return "the host of this one cannot be read"
    if not host:
        return "this one names no host"
    try:
        port = urlsplit(text).port
    except ValueError:
        port = 0
    return "the port of this one is no number from 1 to 65535" if port == 0 else None


def checked_host(text: str) -> str:
    """A host of an allow-list, `host`, `*.host` or `host:port`, in small letters. Raises ValueError."""
    bare = text.strip().lower().removeprefix("*.")
    if not bare or "*" in bare or "/" in bare or "@" in bare or _fault_of(f"http://{bare}"):
        raise ValueError("expected a host such as example.com, *.example.com or example.com:8443")
    return text.strip().lower()
