"""Slow set-up of workers and HTTP clients whose result is always the same: in tests, it is made once a process."""

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import httpcore2
import httpx
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner


@contextmanager
def once_a_process() -> Iterator[None]:
    """Read certificates (20 ms a client) and check that workflows load in the sandbox (1 ms a workflow) once."""
    with (
        patch("httpcore2.default_ssl_context", _once_an_environment(httpcore2.default_ssl_context)),
        patch("httpx._transports.default.create_ssl_context", _once_an_environment(httpx.create_ssl_context)),
        patch.object(
            SandboxedWorkflowRunner, "prepare_workflow", _once_alike(SandboxedWorkflowRunner.prepare_workflow)
        ),
    ):
        yield


def _once_an_environment(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """`SSL_CERT_FILE` and `SSL_CERT_DIR` may name other certificates."""
    once = cache(lambda _, options: create(**dict(options)))

    def create_once(**options: Any) -> ssl.SSLContext:
        named = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
        return once(named, tuple(options.items()))

    return create_once


def _once_alike(prepare: Callable[..., None]) -> Callable[..., None]:
    """Skip what the same workflow under the same restrictions has passed."""
    passed: list[tuple[type, Any]] = []

    def prepare_once(runner: SandboxedWorkflowRunner, definition: Any) -> None:
        alike = (definition.cls, runner.restrictions)
        if alike not in passed:
            prepare(runner, definition)
            passed.append(alike)

    return prepare_once
