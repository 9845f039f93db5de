"""boto3 with its default settings: integrity checksums on, SigV4, retries as they come."""

import http.client
import ssl
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import cases
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError
from cases import case, payload, sha256

OBJECT_FACTS = (
    "ETag",
    "ContentLength",
    "ContentType",
    "ContentEncoding",
    "CacheControl",
    "ContentDisposition",
    "ContentLanguage",
    "ContentRange",
    "Metadata",
    "ChecksumType",
    "ChecksumCRC32",
    "ChecksumCRC32C",
    "ChecksumCRC64NVME",
    "ChecksumSHA1",
    "ChecksumSHA256",
)


def connect(endpoint: Any, style: str = "path", **settings: Any) -> Any:
    return boto3.client("s3", endpoint_url=endpoint.url, config=Config(s3={"addressing_style": style}, **settings))


def facts(response: dict[str, Any]) -> dict[str, Any]:
    """The parts of a response that JSON can hold and a test asks for; a body becomes its digest."""
    known = {name: response[name] for name in OBJECT_FACTS if name in response}
    known["status"] = response["ResponseMetadata"]["HTTPStatusCode"]
    known["request_id"] = response["ResponseMetadata"].get("RequestId", "")
    if "Body" in response:
        known["sha256"] = sha256(response["Body"].read())
    return known


def refusal(function: Any, **arguments: Any) -> dict[str, Any]:
    """Status and code with which a call is refused; code "" where it is not."""
    try:
        response = function(**arguments)
        if "Body" in response:
            response["Body"].read()
    except ClientError as error:
        return {
            "status": error.response["ResponseMetadata"]["HTTPStatusCode"],
            "code": error.response["Error"]["Code"],
            "details": {k: v for k, v in error.response["Error"].items() if isinstance(v, str)},
        }
    return {"status": response["ResponseMetadata"]["HTTPStatusCode"], "code": ""}


@case
def round_trip(endpoint: Any, bucket: str, keys: list[str], size: int, **attributes: Any) -> list[dict[str, Any]]:
    """Put, head and get each key."""
    s3 = connect(endpoint)
    done = []
    for key in keys:
        put = facts(s3.put_object(Bucket=bucket, Key=key, Body=payload(key, size), **attributes))
        head = facts(s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED"))
        done.append({"put": put, "head": head, "get": facts(s3.get_object(Bucket=bucket, Key=key))})
    return done


@case
def keys_survive(endpoint: Any, bucket: str, keys: list[str], style: str = "path") -> dict[str, Any]:
    """Put, get, list, copy and delete awkward keys; every step must name the very same key."""
    s3 = connect(endpoint, style)
    read, copied = {}, {}
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=payload(key, 100))
    for key in keys:
        read[key] = sha256(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        s3.copy_object(Bucket=bucket, Key=f"copy/{key}", CopySource={"Bucket": bucket, "Key": key})
        copied[key] = sha256(s3.get_object(Bucket=bucket, Key=f"copy/{key}")["Body"].read())
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 7})
    listed = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    for key in keys[::2]:
        s3.delete_object(Bucket=bucket, Key=key)
    deleted = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys[1::2]]})
    left = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]
    return {
        "read": read,
        "copied": copied,
        "listed": listed,
        "deleted": sorted(entry["Key"] for entry in deleted.get("Deleted", [])),
        "errors": deleted.get("Errors", []),
        "left": left,
    }


@case
def listing(endpoint: Any, bucket: str, keys: list[str], page_size: int) -> dict[str, Any]:
    """List in pages, with both versions of the operation, with and without a delimiter."""
    s3 = connect(endpoint)
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    result: dict[str, Any] = {}
    for name in ("list_objects", "list_objects_v2"):
        for label, options in (
            ("flat", {}),
            ("folders", {"Delimiter": "/"}),
            ("prefix", {"Prefix": "a/", "Delimiter": "/"}),
        ):
            pages = list(
                s3.get_paginator(name).paginate(Bucket=bucket, PaginationConfig={"PageSize": page_size}, **options)
            )
            result[f"{name} {label}"] = {
                "keys": [entry["Key"] for page in pages for entry in page.get("Contents", [])],
                "prefixes": [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])],
                "largest": max(len(page.get("Contents", [])) + len(page.get("CommonPrefixes", [])) for page in pages),
            }
    after = s3.list_objects_v2(Bucket=bucket, StartAfter=keys[len(keys) // 2])
    result["after"] = [entry["Key"] for entry in after.get("Contents", [])]
    return result


@case
def delete(endpoint: Any, bucket: str, count: int) -> dict[str, Any]:
    s3 = connect(endpoint)
    keys = [f"delete/{number:04}" for number in range(count)]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    one = s3.delete_object(Bucket=bucket, Key=keys[0])["ResponseMetadata"]["HTTPStatusCode"]
    absent = s3.delete_object(Bucket=bucket, Key="never/there")["ResponseMetadata"]["HTTPStatusCode"]
    wanted = [{"Key": key} for key in [*keys[1:], "never/there"]]
    many = s3.delete_objects(Bucket=bucket, Delete={"Objects": wanted, "Quiet": False})
    left = s3.list_objects_v2(Bucket=bucket)["KeyCount"]
    gone = refusal(s3.get_object, Bucket=bucket, Key=keys[0])
    return {
        "one": one,
        "absent": absent,
        "deleted": len(many.get("Deleted", [])),
        "errors": many.get("Errors", []),
        "left": left,
        "gone": gone,
    }


@case
def copy(endpoint: Any, bucket: str, other: str, size: int) -> dict[str, Any]:
    s3 = connect(endpoint)
    data = payload("copy", size)
    source = {"Bucket": bucket, "Key": "source"}
    s3.put_object(Bucket=bucket, Key="source", Body=data, Metadata={"a": "1"}, ContentType="text/x-a")
    s3.copy_object(Bucket=other, Key="kept", CopySource=source)
    replaced = {"MetadataDirective": "REPLACE", "Metadata": {"b": "2"}, "ContentType": "text/x-b"}
    s3.copy_object(Bucket=other, Key="replaced", CopySource=source, **replaced)
    s3.delete_object(**source)
    return {
        "kept": facts(s3.get_object(Bucket=other, Key="kept")),
        "replaced": facts(s3.get_object(Bucket=other, Key="replaced")),
        "itself": refusal(s3.copy_object, Bucket=other, Key="kept", CopySource={"Bucket": other, "Key": "kept"}),
        "absent": refusal(s3.copy_object, Bucket=other, Key="x", CopySource=source),
    }


@case
def transfer(endpoint: Any, bucket: str, folder: str, size: int, part: int) -> dict[str, Any]:
    """upload_file, download_file and a managed copy, all in parts and in parallel."""
    s3 = connect(endpoint)
    config = TransferConfig(multipart_threshold=part, multipart_chunksize=part, max_concurrency=4)
    source, target = Path(folder, "source"), Path(folder, "target")
    source.write_bytes(payload("transfer", size))
    s3.upload_file(str(source), bucket, "big", Config=config, ExtraArgs={"Metadata": {"made": "by boto3"}})
    s3.download_file(bucket, "big", str(target), Config=config)
    s3.copy({"Bucket": bucket, "Key": "big"}, bucket, "copied", Config=config)
    one_part = s3.get_object(Bucket=bucket, Key="big", PartNumber=2)
    return {
        "head": facts(s3.head_object(Bucket=bucket, Key="big", ChecksumMode="ENABLED")),
        "file": sha256(target.read_bytes()),
        "whole": facts(s3.get_object(Bucket=bucket, Key="big")),
        "copied": facts(s3.get_object(Bucket=bucket, Key="copied")),
        "part": facts(one_part) | {"parts": one_part.get("PartsCount")},
        "uploads": len(s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])),
    }


@case
def abort(endpoint: Any, bucket: str) -> dict[str, Any]:
    """An upload that is given up, and one that is complete, cannot be touched through their ids any more."""
    s3 = connect(endpoint)
    upload = {"Bucket": bucket, "Key": "k", "UploadId": s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]}
    s3.upload_part(**upload, PartNumber=1, Body=b"part")
    before = [entry["UploadId"] == upload["UploadId"] for entry in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]]
    s3.abort_multipart_upload(**upload)
    after = refusal(s3.list_parts, **upload)
    done = {"Bucket": bucket, "Key": "k", "UploadId": s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]}
    part = s3.upload_part(**done, PartNumber=1, Body=b"kept")
    wrong = [{"PartNumber": 1, "ETag": '"00000000000000000000000000000000"'}]
    invalid = refusal(s3.complete_multipart_upload, **done, MultipartUpload={"Parts": wrong})
    s3.complete_multipart_upload(**done, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    late = refusal(s3.abort_multipart_upload, **done)
    kept = s3.get_object(Bucket=bucket, Key="k")["Body"].read().decode()
    return {"before": before, "after": after, "invalid": invalid, "late": late, "kept": kept}


@case
def conditional_writers(endpoint: Any, bucket: str, writers: int) -> dict[str, Any]:
    """All writers put the same absent key at once with If-None-Match: *."""
    s3 = connect(endpoint, max_pool_connections=writers, retries={"total_max_attempts": 1})
    barrier = threading.Barrier(writers)
    outcomes: list[dict[str, Any]] = [{}] * writers

    def write(number: int) -> None:
        barrier.wait()
        body = payload(number, 32_768)
        outcomes[number] = refusal(s3.put_object, Bucket=bucket, Key="one", Body=body, IfNoneMatch="*")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = s3.get_object(Bucket=bucket, Key="one")
    etag = stored["ETag"]
    return {
        "outcomes": outcomes,
        "stored": sha256(stored["Body"].read()),
        "stale": refusal(s3.put_object, Bucket=bucket, Key="one", Body=b"new", IfMatch='"' + "0" * 32 + '"'),
        "absent": refusal(s3.put_object, Bucket=bucket, Key="none", Body=b"new", IfMatch=etag),
        "current": refusal(s3.put_object, Bucket=bucket, Key="one", Body=b"new", IfMatch=etag),
        "unchanged": refusal(s3.get_object, Bucket=bucket, Key="one", IfNoneMatch='"22af645d1859cb5ca6da0c484f1f37ea"'),
        "changed": refusal(s3.get_object, Bucket=bucket, Key="one", IfMatch=etag),
    }


@case
def checksums(endpoint: Any, bucket: str, algorithm: str, part: int) -> dict[str, Any]:
    """One algorithm: a plain put, a wrong value, and an upload in two parts."""
    s3 = connect(endpoint)
    data = payload(algorithm, 100_000)
    put = facts(s3.put_object(Bucket=bucket, Key="plain", Body=data, ChecksumAlgorithm=algorithm))
    got = facts(s3.get_object(Bucket=bucket, Key="plain", ChecksumMode="ENABLED"))
    wrong = {f"Checksum{algorithm}": put[f"Checksum{algorithm}"]}
    refused = refusal(s3.put_object, Bucket=bucket, Key="wrong", Body=data + b"!", **wrong)
    kind = "FULL_OBJECT" if algorithm == "CRC64NVME" else "COMPOSITE"
    options = {"ChecksumAlgorithm": algorithm, "ChecksumType": kind}
    upload = {"Bucket": bucket, "Key": "parts"}
    upload["UploadId"] = s3.create_multipart_upload(**upload, **options)["UploadId"]
    parts = []
    for number, size in ((1, part), (2, 1000)):
        body = payload(f"{algorithm}{number}", size)
        sent = s3.upload_part(**upload, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm)
        parts.append(
            {"PartNumber": number} | {k: v for k, v in sent.items() if k == "ETag" or k.startswith("Checksum")}
        )
    complete = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, ChecksumType=kind)
    return {
        "put": put,
        "get": got,
        "refused": refused,
        "absent": refusal(s3.head_object, Bucket=bucket, Key="wrong"),
        "complete": facts(complete),
        "head": facts(s3.head_object(Bucket=bucket, Key="parts", ChecksumMode="ENABLED")),
        "whole": facts(s3.get_object(Bucket=bucket, Key="parts", ChecksumMode="ENABLED")),
        "without": facts(s3.get_object(Bucket=bucket, Key="parts")),
    }


@case
def ranges(endpoint: Any, bucket: str, size: int, wanted: list[str]) -> dict[str, Any]:
    s3 = connect(endpoint)
    s3.put_object(Bucket=bucket, Key="r", Body=payload("ranges", size))
    answers: dict[str, Any] = {}
    for value in wanted:
        try:
            answers[value] = facts(s3.get_object(Bucket=bucket, Key="r", Range=value))
        except ClientError as error:
            answers[value] = {
                "status": error.response["ResponseMetadata"]["HTTPStatusCode"],
                "code": error.response["Error"]["Code"],
            }
    return answers


@case
def presigned(endpoint: Any, bucket: str) -> dict[str, Any]:
    """URLs made by boto3 and used by a plain HTTP client."""
    s3 = connect(endpoint, signature_version="s3v4")
    key = "signed/a key+=é.bin"
    data = payload("presigned", 70_000)

    def url(operation: str, seconds: int = 60) -> str:
        return s3.generate_presigned_url(operation, Params={"Bucket": bucket, "Key": key}, ExpiresIn=seconds)

    def send(method: str, address: str, body: bytes | None = None) -> dict[str, Any]:
        parts = urlsplit(address)
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=endpoint.ca)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(parts.netloc, context=context)
        else:
            connection = http.client.HTTPConnection(parts.netloc)
        connection.request(method, f"{parts.path}?{parts.query}", body=body)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        known = {"status": response.status, "sha256": sha256(content), "length": response.getheader("content-length")}
        return known | ({"text": content.decode()} if response.status >= 400 else {})

    put = send("PUT", url("put_object"), data)
    short = url("get_object", 1)
    answers = {
        "put": put,
        "get": send("GET", url("get_object")),
        "head": send("HEAD", url("head_object")),
        "tampered": send("GET", url("get_object").replace("X-Amz-Expires=60", "X-Amz-Expires=61")),
        "method": send("DELETE", url("get_object")),
        "unsigned": send("GET", url("get_object").partition("?")[0] + "?x-id=GetObject"),
    }
    time.sleep(2.1)
    return answers | {"expired": send("GET", short)}


@case
def refusals(endpoint: Any, bucket: str) -> dict[str, Any]:
    s3 = connect(endpoint)

    def stranger(access_key: str, secret_key: str) -> Any:
        return boto3.client(
            "s3", endpoint_url=endpoint.url, aws_access_key_id=access_key, aws_secret_access_key=secret_key
        )

    return {
        "key": refusal(s3.get_object, Bucket=bucket, Key="absent"),
        "head": refusal(s3.head_object, Bucket=bucket, Key="absent"),
        "bucket": refusal(s3.get_object, Bucket="no-such-bucket-here", Key="absent"),
        "access key": refusal(stranger("NOSUCHACCESSKEY", endpoint.secret_key).list_buckets),
        "secret key": refusal(stranger(endpoint.access_key, "wrong").list_buckets),
        "not here": refusal(s3.get_bucket_website, Bucket=bucket),
        "not empty": [
            refusal(s3.put_object, Bucket=bucket, Key="k", Body=b"")["status"],
            refusal(s3.delete_bucket, Bucket=bucket),
        ],
    }


if __name__ == "__main__":
    cases.main()
