"""obstore: the object_store crate, in Rust."""

from typing import Any

import cases
import obstore
from cases import case, payload, sha256
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store

MIB = 1 << 20


def refused(function: Any, *arguments: Any, **options: Any) -> str:
    try:
        function(*arguments, **options)
    except (FileNotFoundError, AlreadyExistsError, PreconditionError) as error:
        return type(error).__name__
    return ""


@case
def objects(endpoint: Any, bucket: str, sizes: list[int], checksum: str, style: str = "path") -> dict[str, Any]:
    virtual = style == "virtual"
    store = S3Store(
        bucket,
        endpoint=endpoint.url.replace("://", f"://{bucket}.") if virtual else endpoint.url,
        access_key_id=endpoint.access_key,
        secret_access_key=endpoint.secret_key,
        region=endpoint.region,
        virtual_hosted_style_request=virtual,
        client_options={"allow_http": True},
        **({"checksum_algorithm": checksum} if checksum else {}),
    )
    result: dict[str, Any] = {"stored": {}}
    for size in sizes:
        key = f"dir/{size} =+@é"
        obstore.put(store, key, payload(size, size), chunk_size=5 * MIB, attributes={"Content-Type": "x/y"})
        head = obstore.head(store, key)
        got = obstore.get(store, key)
        kind = got.attributes.get("Content-Type")
        result["stored"][str(size)] = {
            "size": head["size"],
            "etag": head["e_tag"],
            "sha256": sha256(got.bytes()),
            "type": kind,
        }
    largest = f"dir/{max(sizes)} =+@é"
    result["range"] = sha256(obstore.get_range(store, largest, start=100, end=9000))
    pieces = obstore.get_ranges(store, largest, starts=[0, 4 * MIB], ends=[10, 4 * MIB + 10])
    result["ranges"] = [sha256(piece) for piece in pieces]
    obstore.put(store, "once", b"first", mode="create")
    result["again"] = refused(obstore.put, store, "once", b"second", mode="create")
    etag = obstore.head(store, "once")["e_tag"]
    obstore.put(store, "once", b"third", mode={"e_tag": etag})
    result["stale"] = refused(obstore.put, store, "once", b"fourth", mode={"e_tag": etag})
    result["once"] = bytes(obstore.get(store, "once").bytes()).decode()
    obstore.copy(store, largest, "copy")
    result["copy"] = sha256(obstore.get(store, "copy").bytes())
    result["listed"] = sorted(entry["path"] for batch in obstore.list(store) for entry in batch)
    found = obstore.list_with_delimiter(store)
    result["folders"] = found["common_prefixes"], sorted(entry["path"] for entry in found["objects"])
    result["absent"] = refused(obstore.get, store, "absent")
    obstore.delete(store, result["listed"])
    result["left"] = [entry["path"] for batch in obstore.list(store) for entry in batch]
    return result


if __name__ == "__main__":
    cases.main()
