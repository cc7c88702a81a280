from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.commands.demo import serve_site
from tests.e2e.projects import MakeProject, Project, Served, serve


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """The address of the example site."""
    with serve_site() as address:
        yield address


@pytest.fixture(scope="session")
def critique(site: str) -> str:
    """The goal of the worked example (A13)."""
    return f"fetch web {site} and produce a 2 para critique"


@pytest.fixture(scope="session")
def make_project(tmp_path_factory: pytest.TempPathFactory, site: str) -> MakeProject:
    """A project that may fetch from the example site, in a folder with a space in its name."""

    def make(**env: str) -> Project:
        folder = tmp_path_factory.mktemp("e2e") / "my project"
        folder.mkdir()
        project = Project(folder, env)
        project.write("perdure.toml", f'[fetch]\nallow_hosts = ["{site.split("/")[2]}"]\n')
        return project

    return make


@pytest.fixture(scope="module")
async def served(make_project: MakeProject) -> AsyncIterator[Served]:
    async with serve(make_project()) as served:
        yield served


@pytest.fixture(scope="module")
def worked(served: Served) -> Iterator[Served]:
    """As `served`, with a worker."""
    with served.project.worker(TEMPORAL_ADDRESS=served.address):
        yield served
