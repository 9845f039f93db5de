"""minio-py: its own signer, payload hashes over HTTP."""

import io
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cases
from cases import case, payload, sha256
from minio import Minio
from minio.commonconfig import REPLACE, ComposeSource, CopySource
from minio.deleteobjects import DeleteObject
from minio.error import S3Error

MIB = 1 << 20


def connect(endpoint: Any) -> Minio:
    parts = urlsplit(endpoint.url)
    return Minio(
        parts.netloc,
        access_key=endpoint.access_key,
        secret_key=endpoint.secret_key,
        region=endpoint.region,
        secure=parts.scheme == "https",
    )


def fetch(client: Minio, bucket: str, key: str, **arguments: Any) -> str:
    response = client.get_object(bucket, key, **arguments)
    try:
        return sha256(response.read())
    finally:
        response.close()
        response.release_conn()


def code_of(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except S3Error as error:
        return str(error.code)
    return ""


@case
def objects(endpoint: Any, bucket: str, sizes: list[int], folder: str) -> dict[str, Any]:
    client = connect(endpoint)
    result: dict[str, Any] = {"stored": {}}
    for size in sizes:
        key = f"größe/{size} +=@~%"
        written = client.put_object(
            bucket, key, io.BytesIO(payload(size, size)), size, part_size=5 * MIB, metadata={"n": "1"}
        )
        stat = client.stat_object(bucket, key)
        result["stored"][str(size)] = {
            "etag": written.etag,
            "same": stat.etag == written.etag,
            "size": stat.size,
            "metadata": stat.metadata.get("x-amz-meta-n"),
            "sha256": fetch(client, bucket, key),
        }
    largest = max(sizes)
    key = f"größe/{largest} +=@~%"
    client.put_object(bucket, "unknown length", io.BytesIO(payload(largest, largest)), -1, part_size=5 * MIB)
    result["unknown"] = fetch(client, bucket, "unknown length")
    result["range"] = fetch(client, bucket, key, offset=1000, length=5000)
    client.fget_object(bucket, key, f"{folder}/file")
    result["file"] = sha256(Path(folder, "file").read_bytes())
    client.copy_object(bucket, "copy", CopySource(bucket, key), metadata={"m": "2"}, metadata_directive=REPLACE)
    result["copy"] = fetch(client, bucket, "copy"), client.stat_object(bucket, "copy").metadata.get("x-amz-meta-m")
    client.compose_object(bucket, "composed", [ComposeSource(bucket, key), ComposeSource(bucket, "copy")])
    result["composed"] = fetch(client, bucket, "composed")
    url = client.presigned_get_object(bucket, key, expires=timedelta(seconds=60))
    with urllib.request.urlopen(url) as response:
        result["presigned"] = sha256(response.read())
    listed = client.list_objects(bucket, recursive=True)
    result["listed"] = [entry.object_name for entry in listed]
    result["folders"] = [entry.object_name for entry in client.list_objects(bucket) if entry.is_dir]
    result["absent"] = code_of(client.stat_object, bucket, "absent"), code_of(client.get_object, bucket, "absent")
    errors = client.remove_objects(bucket, [DeleteObject(name) for name in result["listed"]])
    result["errors"] = [str(error) for error in errors]
    result["left"] = len(list(client.list_objects(bucket, recursive=True)))
    return result


@case
def buckets(endpoint: Any, name: str) -> dict[str, Any]:
    client = connect(endpoint)
    before = client.bucket_exists(name)
    client.make_bucket(name)
    made = client.bucket_exists(name), name in [bucket.name for bucket in client.list_buckets()]
    again = code_of(client.make_bucket, name)
    client.remove_bucket(name)
    return {"before": before, "made": made, "again": again, "after": client.bucket_exists(name)}


if __name__ == "__main__":
    cases.main()
