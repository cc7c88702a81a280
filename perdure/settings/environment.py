"""Settings from environment variables. A reader takes the value of a variable, and raises ValueError with a reason."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from perdure.contracts.models import is_utf8
from perdure.extras import install_command
from perdure.settings.problems import ProjectError

if TYPE_CHECKING:
    from perdure.activities.storage.object_store import PayloadStore, RemoteStores


T = TypeVar("T")

# With other names or builds, the server accepts a worker but never gives it work.
DEPLOYMENT_NAME = r"(?!__)[^.:]{1,200}"
MAX_BUILD_ID = 200
MAX_PORT = 65_535
MAX_QUEUE_BYTES = 1000  # the server's limit


@dataclass(frozen=True)
class Deployment:
    """A worker's deployment and build, for Temporal's worker versioning."""

    name: str
    build_id: str

    def __str__(self) -> str:
        return f"deployment {self.name}, build {self.build_id}"


def deployment_of(env: Mapping[str, str]) -> Deployment | None:
    """Return the deployment in the variables that Temporal's worker controller sets. Raises ProjectError."""
    name, build_id = env.get("TEMPORAL_DEPLOYMENT_NAME") or None, env.get("TEMPORAL_WORKER_BUILD_ID") or None
    if name is None and build_id is None:
        return None
    if name is None or build_id is None:
        have, lack = ("TEMPORAL_DEPLOYMENT_NAME", "TEMPORAL_WORKER_BUILD_ID")[:: 1 if name else -1]
        raise ProjectError(f"{have} is set and {lack} is not: worker versioning needs both")
    if not re.fullmatch(DEPLOYMENT_NAME, name) or len(build_id) > MAX_BUILD_ID:
        raise ProjectError(
            f"TEMPORAL_DEPLOYMENT_NAME and TEMPORAL_WORKER_BUILD_ID: expected up to {MAX_BUILD_ID} characters each, "
            "and a name without . and : that does not begin with __"
        )
    return Deployment(name, build_id)


def parse_variable(variable: str, text: str | None, read: Callable[[str], T]) -> T | None:
    """Return the value that `read` parses from the text of a variable, if it is set. Raises ProjectError."""
    try:
        return read(text) if text else None
    except ImportError:
        raise ProjectError(f"{variable} needs the package obstore: {install_command('object-store')}") from None
    except ValueError as error:
        raise ProjectError(f"{variable}: {error}") from None


def check_task_queue(name: str) -> str:
    if not is_utf8(name) or len(name.encode()) > MAX_QUEUE_BYTES:
        raise ValueError(f"expected up to {MAX_QUEUE_BYTES:,} bytes of UTF-8")
    return name


def parse_endpoint(text: str) -> str | None:
    """Return "address:port" of the metrics endpoint. It has no password, so a bare port binds to loopback."""
    host, _, port = text.strip().rpartition(":")
    if not host and not port:
        return None
    host = "127.0.0.1" if host in ("", "localhost") else host
    try:
        address = ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        address = None
    if address is None or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 0 < int(port) <= MAX_PORT:
        raise ValueError(f'expected a port or "address:port", like 127.0.0.1:9464, not {text.strip()!r}')
    return f"[{address}]:{int(port)}" if address.version == 6 else f"{address}:{int(port)}"


def exports_spans(env: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables enable spans. The exporter reads the other ones itself."""
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return bool(env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


def open_remote_stores(url: str) -> "RemoteStores":
    """Return the runs' stores on an object store."""
    from perdure.activities.storage.object_store import RemoteStores  # it needs the optional package obstore

    return RemoteStores.at(url)


def open_payloads(url: str) -> "PayloadStore":
    """Return the object store of large payloads."""
    from perdure.activities.storage.object_store import PayloadStore  # it needs the optional package obstore

    return PayloadStore(url)


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
