"""The endpoint under measurement: how it is reached, and what the benchmark leaves in its bucket: nothing."""

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from s3verbs.bench.errors import BenchError, CannotStart

DELETE_AT_ONCE = 1000
"""Keys of one DeleteObjects at most."""


@dataclass(frozen=True, slots=True)
class Access:
    """`token` is the session token of temporary keys, `ca_bundle` a PEM file of authorities; "" for none."""

    url: str
    access_key: str
    secret_key: str
    token: str = ""
    region: str = "us-east-1"
    ca_bundle: str = ""

    def parameters(self, bucket: str) -> dict[str, str]:
        """Of NIXL's OBJ plugin, for either engine."""
        optional = {"session_token": self.token, "ca_bundle": self.ca_bundle}
        return {
            "endpoint_override": self.url,
            "scheme": urlsplit(self.url).scheme,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "bucket": bucket,
            "region": self.region,
            "use_virtual_addressing": "false",
            "req_checksum": "required",
            **{name: value for name, value in optional.items() if value},
        }


def from_chain(url: str, region: str) -> Access:
    """With the keys of botocore's default chain. Raises CannotStart."""
    if not _is_endpoint(url):
        raise CannotStart(f"--endpoint {url}: must be http://HOST:PORT or https://HOST:PORT")
    from s3verbs.rdma.client.credentials import ChainKeys

    keys = ChainKeys().keys()
    if keys is None:
        raise CannotStart(
            "no access key found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE of ~/.aws/credentials"
        )
    bundle = os.environ.get("AWS_CA_BUNDLE", "")
    return Access(url.rstrip("/"), keys.access_key, keys.secret_key, keys.token or "", region, bundle)


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        number = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and number != 0
        and parts.path in ("", "/")
        and not (parts.query or parts.username)
    )


class Bucket:
    """One bucket through botocore, which is not measured. One thread."""

    def __init__(self, access: Access, name: str) -> None:
        """Looks whether it is there. Raises CannotStart."""
        import botocore.session  # type: ignore[import-untyped, unused-ignore]
        from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped, unused-ignore]

        self._errors: tuple[type[Exception], ...] = (BotoCoreError, ClientError)
        self._name = name
        self._s3: Any = botocore.session.Session().create_client(
            "s3",
            endpoint_url=access.url,
            region_name=access.region,
            aws_access_key_id=access.access_key,
            aws_secret_access_key=access.secret_key,
            aws_session_token=access.token or None,
            config=Config(s3={"addressing_style": "path"}, connect_timeout=10, retries={"total_max_attempts": 3}),
        )
        try:
            self._s3.head_bucket(Bucket=name)
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            meaning = {404: "there is no such bucket; make it, or name one by --bucket", 403: "the keys may not use it"}
            raise CannotStart(f"{access.url}, bucket {name}: {meaning.get(status, f'status {status}')}") from None
        except BotoCoreError as error:
            raise CannotStart(f"{access.url}: {error}") from None

    def delete(self, prefix: str) -> int:
        """Every object under `prefix`; how many there were. Raises BenchError."""
        count = 0
        try:
            while True:
                page = self._s3.list_objects_v2(Bucket=self._name, Prefix=prefix, MaxKeys=DELETE_AT_ONCE)
                keys = [{"Key": found["Key"]} for found in page.get("Contents", [])]
                if not keys:
                    return count
                done = self._s3.delete_objects(Bucket=self._name, Delete={"Objects": keys, "Quiet": True})
                if refused := done.get("Errors"):
                    raise BenchError(f"cannot delete {refused[0]['Key']}: {refused[0]['Code']}")
                count += len(keys)
        except self._errors as error:
            raise BenchError(f"cannot delete the objects under {prefix}: {error}") from None
