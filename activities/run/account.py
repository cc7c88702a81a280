"""The account of a run, for budgets and the logins of requesters. It is kept in the run's store."""

from perdure.activities.storage.store import Store, read_model
from perdure.contracts.people import Account

ACCOUNT_FILE = "account.json"


def write_account(store: Store, account: Account) -> None:
    """Store the account of a run. Raises OSError."""
    store.write(ACCOUNT_FILE, account.model_dump_json().encode())


def read_account(store: Store) -> Account | None:
    """Return the account of a run; None if it began in a project without these. Raises OSError."""
    return read_model(store, ACCOUNT_FILE, Account)
