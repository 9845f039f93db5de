"""Who a request speaks for."""

from dataclasses import dataclass

ROOT_ACCOUNT = "root"
"""The account of the endpoint's operator: it may do everything, in every account's buckets."""


@dataclass(frozen=True, slots=True)
class Principal:
    """`id` is the account, shown as the canonical user id of an Owner; `access_key` is the key that signed, or "" for
    anonymous."""

    id: str
    display_name: str
    access_key: str

    @property
    def anonymous(self) -> bool:
        return not self.access_key


ANONYMOUS = Principal(id="anonymous", display_name="anonymous", access_key="")
