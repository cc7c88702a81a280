"""RFC 3161 time stamps of signed records, by the optional package `rfc3161-client`."""

from base64 import b64decode, b64encode
from datetime import datetime
from importlib import import_module
from typing import Any

import httpx
from cryptography.x509 import load_pem_x509_certificates

from decisions.errors import ReportedError
from decisions.text.formatting import truncate

TIMESTAMP_TIMEOUT = 30.0  # seconds
MAX_TIMESTAMP_BYTES = 256 * 1024


class TimestampError(ReportedError):
    """The time stamp is not valid; the message is the reason."""


def load_library() -> Any:
    """Return the package. Raises ReportedError if it is not installed."""
    try:
        return import_module("rfc3161_client")
    except ModuleNotFoundError:
        raise ReportedError('time stamps need the package rfc3161-client: pip install "perdure[timestamp]"') from None


def request_timestamp(url: str, message: bytes) -> str:
    """Return the answer of a time-stamping authority about the message, as base64. Raises ReportedError."""
    library = load_library()
    request = library.TimestampRequestBuilder().data(message).hash_algorithm(library.HashAlgorithm.SHA256).build()
    data = _post(url, request.as_bytes())
    try:
        response = library.decode_timestamp_response(data)
        if response.status != library.PKIStatus.GRANTED:
            reason = "; ".join(response.status_string) or library.PKIStatus(response.status).name.lower()
            raise ReportedError(f"the time-stamping authority rejects the request: {truncate(reason, 200)}")
        info = response.tst_info
    except ValueError:
        raise ReportedError("the time-stamping authority does not answer with a time stamp") from None
    if (info.nonce, info.message_imprint.message) != (request.nonce, request.message_imprint.message):
        raise ReportedError("the time-stamping authority answers with the time stamp of something else")
    return b64encode(data).decode()


def _post(url: str, body: bytes) -> bytes:
    headers = {"Content-Type": "application/timestamp-query", "Accept": "application/timestamp-reply"}
    data = b""
    try:
        with httpx.stream("POST", url, content=body, headers=headers, timeout=TIMESTAMP_TIMEOUT) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_bytes():
                data += chunk
                if len(data) > MAX_TIMESTAMP_BYTES:
                    raise ReportedError(f"the time stamp is larger than {MAX_TIMESTAMP_BYTES:,} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = truncate(str(error).partition("\n")[0] or type(error).__name__, 200)
        raise ReportedError(f"no time stamp by the authority of --timestamp: {reason}") from None
    return data


def check_timestamp(timestamp: str, message: bytes, roots: bytes) -> datetime:
    """Return the time of a valid time stamp of the message, by an authority whose root is in `roots`, PEM.

    Raises TimestampError, and ReportedError if there are no roots.
    """
    library = load_library()
    try:
        certificates = load_pem_x509_certificates(roots)
    except ValueError:
        raise ReportedError("--tsa-cert has no certificate in PEM") from None
    try:
        response = library.decode_timestamp_response(b64decode(timestamp, validate=True))
        library.VerifierBuilder(roots=certificates).build().verify_message(response, message)
        time: datetime = response.tst_info.gen_time
    except (library.VerificationError, ValueError) as error:
        raise TimestampError(truncate(str(error).partition("\n")[0], 200)) from None
    return time
