import pytest

pytest.register_assert_rewrite("tests.docs.stage", "tests.docs.scenes")

from tests.e2e.conftest import site  # noqa: E402 - the example site, of which there is one

__all__ = ["site"]
