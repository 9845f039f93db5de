"""Buckets: what their write transactions do."""

from dataclasses import replace

from s3verbs.storage import keys, uploads
from s3verbs.storage.commits import Outcome
from s3verbs.storage.errors import BucketExists, BucketNotEmpty
from s3verbs.storage.metadata import Table, WriteTransaction
from s3verbs.storage.model import Bucket, BucketName, Durability
from s3verbs.storage.publishing import find_bucket
from s3verbs.storage.records import encode_bucket

ABORTED_ROWS = 10_000
"""About as many part records are removed in one transaction when many uploads are aborted."""


def create(bucket: Bucket, transaction: WriteTransaction) -> Outcome[None]:
    """Raises BucketExists."""
    place = keys.bucket_key(bucket.name)
    if transaction.get(Table.BUCKETS, place) is not None:
        raise BucketExists(bucket.name)
    transaction.put(Table.BUCKETS, place, encode_bucket(bucket))
    return None, []


def update(bucket: BucketName, durability: Durability, transaction: WriteTransaction) -> Outcome[Bucket]:
    """Raises BucketNotFound."""
    updated = replace(find_bucket(transaction, bucket), durability=durability)
    transaction.put(Table.BUCKETS, keys.bucket_key(updated.name), encode_bucket(updated))
    return updated, []


def delete(bucket: Bucket, transaction: WriteTransaction) -> Outcome[bool]:
    """Abort uploads of the bucket, and delete it when none is left, which is what is returned.
    Raises BucketNotFound, BucketNotEmpty."""
    found = find_bucket(transaction, bucket)
    for _ in transaction.scan(Table.OBJECTS, *keys.object_range(found.id)):
        raise BucketNotEmpty(found.name)
    released, finished = uploads.abort_uploads(transaction, found.id, ABORTED_ROWS)
    if finished:
        transaction.delete(Table.BUCKETS, keys.bucket_key(found.name))
    return finished, released
