"""s3transfer on the AWS Common Runtime (the client inside `boto3[crt]`, mountpoint-s3 and LMCache's S3 connector)."""

from pathlib import Path
from typing import Any

import boto3
import botocore.session
import cases
from botocore.config import Config
from cases import case, payload, sha256
from s3transfer.crt import (
    BotocoreCRTCredentialsWrapper,
    BotocoreCRTRequestSerializer,
    CRTTransferManager,
    create_s3_crt_client,
)

MIB = 1 << 20


@case
def transfer(endpoint: Any, bucket: str, folder: str, sizes: list[int], style: str = "path") -> dict[str, Any]:
    """Upload and download files of the given sizes; above 8 MiB the runtime goes in parallel parts."""
    session = botocore.session.get_session()
    wrapper = BotocoreCRTCredentialsWrapper(session.get_credentials())
    client = create_s3_crt_client(
        endpoint.region,
        crt_credentials_provider=wrapper.to_crt_credentials_provider(),
        use_ssl=endpoint.url.startswith("https:"),
        verify=endpoint.ca or None,
        target_throughput=MIB * 256,
        part_size=8 * MIB,
    )
    settings = {"endpoint_url": endpoint.url, "config": Config(s3={"addressing_style": style})}
    serializer = BotocoreCRTRequestSerializer(session, dict(settings))
    s3 = boto3.client("s3", **settings)
    files = {}
    with CRTTransferManager(client, serializer) as manager:
        for size in sizes:
            source, target = Path(folder, f"source-{size}"), Path(folder, f"target-{size}")
            source.write_bytes(payload(size, size))
            manager.upload(str(source), bucket, f"crt/{size}").result()
            manager.download(bucket, f"crt/{size}", str(target)).result()
            head = s3.head_object(Bucket=bucket, Key=f"crt/{size}", ChecksumMode="ENABLED")
            files[str(size)] = {
                "sha256": sha256(target.read_bytes()),
                "etag": head["ETag"],
                "length": head["ContentLength"],
                "checksums": {name: value for name, value in head.items() if name.startswith("Checksum")},
            }
    return files


if __name__ == "__main__":
    cases.main()
