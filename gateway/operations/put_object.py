"""PutObject. Source: Amazon S3 API Reference, PutObject."""

from s3verbs.gateway import etag
from s3verbs.gateway.checksums import ALGORITHMS, Claims, full_object
from s3verbs.gateway.http.conditions import write_condition
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.object_headers import attributes_from, check_write, checksum_headers
from s3verbs.gateway.transfer import Ingested
from s3verbs.storage.model import Bucket, Checksum, Durability

DEFAULT_ALGORITHM = "CRC64NVME"
"""What S3 keeps with an object whose writer names no algorithm. Every ingest computes it."""

ALGORITHM_SETS = {name: frozenset((name,)) for name in ALGORITHMS}


async def put_object(call: Call) -> Reply:
    """Every header is judged, and the bucket known to exist, before the first byte of the payload is read."""
    headers = call.request.headers
    check_write(headers)
    attributes = attributes_from(headers)
    algorithm = Claims.from_headers(headers).algorithm or DEFAULT_ALGORITHM
    condition = write_condition(headers)
    bucket = call.objects.bucket(call.bucket)
    ingested = await call.ingest(
        algorithms=ALGORITHM_SETS[algorithm], durability=bucket.durability, md5=wants_md5(bucket)
    )
    version = await call.objects.publish(
        bucket,
        call.key,
        payload=ingested.payload,
        etag=etag_of(ingested),
        attributes=attributes,
        checksum=checksum_of(ingested, algorithm),
        condition=condition,
    )
    return Reply(200, {"ETag": f'"{version.etag}"', **checksum_headers(version.checksum)})


def etag_of(ingested: Ingested) -> str:
    return etag.single(ingested.md5, ingested.digests[DEFAULT_ALGORITHM], ingested.length)


def wants_md5(bucket: Bucket) -> bool:
    """Relaxed buckets are caches: an MD5 costs more than all else that is done to a payload, and nobody asks for it."""
    return bucket.durability is Durability.STRICT


def checksum_of(ingested: Ingested, algorithm: str) -> Checksum:
    return full_object(algorithm, ingested.digests[algorithm])
