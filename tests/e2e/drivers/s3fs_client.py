"""s3fs: a file system on aiobotocore."""

from typing import Any

import cases
import s3fs
from cases import case, payload, sha256

MIB = 1 << 20


@case
def files(endpoint: Any, bucket: str, size: int) -> dict[str, Any]:
    fs = s3fs.S3FileSystem(
        key=endpoint.access_key,
        secret=endpoint.secret_key,
        endpoint_url=endpoint.url,
        client_kwargs={"region_name": endpoint.region},
        default_block_size=5 * MIB,
    )
    data = payload("s3fs", size)
    big, small = f"{bucket}/deep/er/big file=1", f"{bucket}/deep/small"
    with fs.open(big, "wb", block_size=5 * MIB) as file:
        for start in range(0, size, 3 * MIB):
            file.write(data[start : start + 3 * MIB])
    fs.pipe(small, data[:1000])
    with fs.open(big, "rb", block_size=MIB, cache_type="readahead") as file:
        file.seek(size - 777_777)
        tail = file.read()
    result = {
        "whole": sha256(fs.cat(big)),
        "tail": sha256(tail),
        "many": {name.removeprefix(f"{bucket}/"): sha256(value) for name, value in fs.cat([big, small]).items()},
        "range": sha256(fs.cat_file(big, start=10, end=5010)),
        "info": [fs.info(big)["size"], fs.info(big)["type"], fs.info(f"{bucket}/deep")["type"]],
        "ls": sorted(name.removeprefix(f"{bucket}/") for name in fs.ls(f"{bucket}/deep")),
        "find": sorted(name.removeprefix(f"{bucket}/") for name in fs.find(bucket)),
        "glob": sorted(name.removeprefix(f"{bucket}/") for name in fs.glob(f"{bucket}/deep/**/*file*")),
    }
    fs.copy(big, f"{bucket}/copied")
    result["copied"] = sha256(fs.cat(f"{bucket}/copied"))
    fs.mv(f"{bucket}/copied", f"{bucket}/moved")
    result["moved"] = [fs.exists(f"{bucket}/copied"), sha256(fs.cat(f"{bucket}/moved"))]
    try:
        fs.cat(f"{bucket}/absent")
        result["absent"] = "found"
    except FileNotFoundError:
        result["absent"] = "FileNotFoundError"
    fs.rm(f"{bucket}/deep", recursive=True)
    fs.invalidate_cache()
    result["left"] = [name.removeprefix(f"{bucket}/") for name in fs.find(bucket)]
    return result


if __name__ == "__main__":
    cases.main()
