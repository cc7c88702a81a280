"""Large payloads on an object store, through the SDK's external storage: Temporal keeps a reference of some 100 bytes.

Imported only if `PERDURE_PAYLOADS` is set. Needs `obstore`.
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

PAYLOADS_VARIABLE = "PERDURE_PAYLOADS"
# The keys that `store` creates. A service rejects an invalid name with the same error as when it is unavailable.
_KEY = re.compile(r"([A-Za-z0-9_.%-]{1,100}/){1,2}[0-9a-f]{64}")


class PayloadStore(StorageDriver):
    """Payloads named by the hash of their content below `<namespace>/<workflow id>/`. Nothing is ever deleted.

    `store` and `retrieve` raise OSError if the store does not answer; `retrieve` raises ValueError if the payload is
    missing or damaged.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    @classmethod
    def at(cls, url: str) -> "PayloadStore":
        """Raises ValueError for an invalid URL."""
        return cls(open_store(url))

    async def check_access(self) -> None:
        """Raise OSError if the store does not answer, or denies access."""
        with as_os_errors(PAYLOADS_VARIABLE):
            await obstore.list_with_delimiter_async(self._objects)

    def name(self) -> str:
        return "perdure"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        return list(
            await asyncio.gather(
                *(self._store_payload(_target_folder(context.target), payload) for payload in payloads)
            )
        )

    async def retrieve(
        self,
        context: StorageDriverRetrieveContext,  # noqa: ARG002 - the SDK's
        claims: Sequence[StorageDriverClaim],
    ) -> list[Payload]:
        return list(await asyncio.gather(*(self._retrieve_payload(claim.claim_data["key"]) for claim in claims)))

    async def _store_payload(self, folder: str, payload: Payload) -> StorageDriverClaim:
        data = payload.SerializeToString(deterministic=True)
        key = f"{folder}/{sha256(data).hexdigest()}"
        with as_os_errors(PAYLOADS_VARIABLE):
            await obstore.put_async(self._objects, key, data)
        return StorageDriverClaim({"key": key})

    async def _retrieve_payload(self, key: str) -> Payload:
        if not _KEY.fullmatch(key):
            raise ValueError("the reference names nothing that was ever stored")
        try:
            with as_os_errors(PAYLOADS_VARIABLE):
                data = bytes(await (await obstore.get_async(self._objects, key)).bytes_async())
        except FileNotFoundError:
            raise ValueError(f"there is no {key} in the store") from None
        if sha256(data).hexdigest() != key.rpartition("/")[2]:
            raise ValueError(f"{key} of the store is damaged")
        return Payload.FromString(data)


def _target_folder(target: StorageDriverActivityInfo | StorageDriverWorkflowInfo | None) -> str:
    return f"{folder_name(target.namespace)}/{folder_name(target.id or '')}" if target else "unowned"
