"""`python -m bench.peers NAME ADDRESS QUEUE`: a peer's worker, which speaks as `bench.worker` does."""

import asyncio
import sys
from importlib import import_module
from typing import TextIO

from bench.reports import answer, own_output


async def serve(name: str, address: str, queue: str, reports: TextIO) -> None:
    """Works until its standard input ends."""
    peer = import_module(f"bench.peers.{name}")
    async with peer.build(await peer.connect(address), queue):
        await answer(peer.MARKS, reports)
    await asyncio.sleep(0.2)  # the SDK's own threads must end before the interpreter goes (sdk-python#300)


if __name__ == "__main__":
    kept = own_output()
    name, address, queue = sys.argv[1:]
    asyncio.run(serve(name, address, queue, kept))
