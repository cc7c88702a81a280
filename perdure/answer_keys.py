"""The keys of `PERDURE_ANSWER_KEY`: the secret half signs answers, the public half verifies them.

`id:<base64 of 32 bytes>`, separated by commas: the first that a run accepts signs. `id:public:<base64>` is only the
public half, for a worker that verifies; `python -m perdure.answer_keys` prints it.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.codec import InvalidKeysError, parse_key_entries
from perdure.contracts.run.signals import HumanInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ANSWER_KEY_VARIABLE = "PERDURE_ANSWER_KEY"
PUBLIC_PREFIX = "public:"


class MissingKeyError(Exception):
    """A run requires a signature with a key that this process lacks. The message names the key."""


@dataclass(frozen=True)
class AnswerKeys:
    """Keys by id: `public` for runs to verify, `secret` to sign in this process."""

    public: Mapping[str, str] = field(default_factory=dict)
    secret: Mapping[str, "Ed25519PrivateKey"] = field(default_factory=dict, repr=False)

    def sign_for(self, run: str, execution: str, accepted: Mapping[str, str], answer: HumanInput) -> HumanInput:
        """Return the answer signed with one of the accepted keys, if any are. Raises MissingKeyError."""
        if not accepted:
            return answer
        from perdure.decisions.people.signature import add_signature  # most clients have no keys

        for key_id, key in self.secret.items():
            if accepted.get(key_id) == self.public[key_id]:
                return add_signature(run, execution, answer, key_id, key)
        names = " or ".join(accepted)
        raise MissingKeyError(
            f"{run} accepts only answers signed with key {names}: set {ANSWER_KEY_VARIABLE} to that key"
        )


NO_KEYS = AnswerKeys()


def read_answer_keys(text: str) -> AnswerKeys:
    """Parse `PERDURE_ANSWER_KEY`. Raises InvalidKeysError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from perdure.decisions.people.signature import public_text

    public: dict[str, str] = {}
    secret: dict[str, Ed25519PrivateKey] = {}
    for key_id, data, is_public in parse_key_entries(text, PUBLIC_PREFIX):
        if is_public:
            public[key_id] = public_text(Ed25519PublicKey.from_public_bytes(data))
        else:
            secret[key_id] = Ed25519PrivateKey.from_private_bytes(data)
            public[key_id] = public_text(secret[key_id])
    return AnswerKeys(public, secret)


def format_public(keys: AnswerKeys) -> str:
    """Format the public halves as `PERDURE_ANSWER_KEY` of a worker that only verifies."""
    return ",".join(f"{key_id}:{PUBLIC_PREFIX}{public}" for key_id, public in keys.public.items())


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{format_public(read_answer_keys(os.environ.get(ANSWER_KEY_VARIABLE) or ''))}\n")
    except InvalidKeysError as error:
        sys.exit(f"{ANSWER_KEY_VARIABLE}: {error}")
