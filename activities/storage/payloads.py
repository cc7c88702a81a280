"""Large payloads on an object store, through the SDK's external storage: Temporal keeps a reference of some 100 bytes.

Only what `PERDURE_PAYLOADS` names needs this module, and `obstore`, which it brings along.
"""

import asyncio
import re
from collections.abc import Sequence
from hashlib import sha256

import obstore
from obstore.store import ObjectStore
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverActivityInfo,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from activities.storage.object_store import as_os_errors, open_store
from activities.storage.workspace import folder_name

VARIABLE = "PERDURE_PAYLOADS"
# As `store` makes them. What a service cannot take for a name, it refuses as it does when it is away.
_KEY = re.compile(r"([A-Za-z0-9_.%-]{1,100}/){1,2}[0-9a-f]{64}")


class PayloadStore(StorageDriver):
    """Named by the hash of its content, so whoever stores it once more writes the same.

    All of a workflow is below `<namespace>/<workflow id>/`, and nothing is ever deleted here. Where the store does not
    answer, both methods raise OSError; where it has not what a reference names, `retrieve` raises ValueError.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    @classmethod
    def at(cls, url: str) -> "PayloadStore":
        """Raises ValueError for a URL that is none."""
        return cls(open_store(url))

    async def look(self) -> None:
        """Raises OSError where the store does not answer, or not us."""
        with as_os_errors(VARIABLE):
            await obstore.list_with_delimiter_async(self._objects)

    def name(self) -> str:
        return "perdure"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        return list(await asyncio.gather(*(self._put(_folder(context.target), payload) for payload in payloads)))

    async def retrieve(
        self,
        context: StorageDriverRetrieveContext,  # noqa: ARG002 - the SDK's
        claims: Sequence[StorageDriverClaim],
    ) -> list[Payload]:
        return list(await asyncio.gather(*(self._get(claim.claim_data["key"]) for claim in claims)))

    async def _put(self, folder: str, payload: Payload) -> StorageDriverClaim:
        data = payload.SerializeToString(deterministic=True)
        key = f"{folder}/{sha256(data).hexdigest()}"
        with as_os_errors(VARIABLE):
            await obstore.put_async(self._objects, key, data)
        return StorageDriverClaim({"key": key})

    async def _get(self, key: str) -> Payload:
        if not _KEY.fullmatch(key):
            raise ValueError("the reference names nothing that was ever stored")
        try:
            with as_os_errors(VARIABLE):
                data = bytes(await (await obstore.get_async(self._objects, key)).bytes_async())
        except FileNotFoundError:
            raise ValueError(f"there is no {key} in the store") from None
        if sha256(data).hexdigest() != key.rpartition("/")[2]:
            raise ValueError(f"{key} of the store is damaged")
        return Payload.FromString(data)


def _folder(target: StorageDriverActivityInfo | StorageDriverWorkflowInfo | None) -> str:
    return f"{folder_name(target.namespace)}/{folder_name(target.id or '')}" if target else "unowned"
