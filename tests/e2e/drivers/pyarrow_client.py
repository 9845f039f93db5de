"""pyarrow.fs.S3FileSystem: the AWS SDK for C++ that pyarrow brings along."""

from typing import Any
from urllib.parse import urlsplit

import cases
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
from cases import case, payload, sha256
from pyarrow import fs

MIB = 1 << 20


@case
def files(endpoint: Any, bucket: str, size: int) -> dict[str, Any]:
    parts = urlsplit(endpoint.url)
    s3 = fs.S3FileSystem(
        access_key=endpoint.access_key,
        secret_key=endpoint.secret_key,
        region=endpoint.region,
        scheme=parts.scheme,
        endpoint_override=parts.netloc,
    )
    data = payload("pyarrow", size)
    big, small = f"{bucket}/dir/big=1 +é", f"{bucket}/dir/small"
    with s3.open_output_stream(big, metadata={"Content-Type": "application/x-arrow"}) as stream:
        for start in range(0, size, 3 * MIB):
            stream.write(data[start : start + 3 * MIB])
    with s3.open_output_stream(small) as stream:
        stream.write(data[:10])
    result: dict[str, Any] = {}
    with s3.open_input_stream(big) as source:
        result["whole"] = sha256(source.read())
        result["type"] = source.metadata().get("Content-Type", b"").decode()
    with s3.open_input_file(big) as source:
        result["range"] = sha256(source.read_at(5000, size - 6000))
    s3.copy_file(big, f"{bucket}/dir/copy")
    s3.move(small, f"{bucket}/dir/moved")
    found = s3.get_file_info(fs.FileSelector(bucket, recursive=True))
    result["found"] = sorted((info.path.removeprefix(f"{bucket}/"), info.type.name, info.size or 0) for info in found)
    result["absent"] = s3.get_file_info(f"{bucket}/absent").type.name
    table = pyarrow.table({"part": [n % 3 for n in range(9000)], "value": list(range(9000))})
    pyarrow.parquet.write_to_dataset(table, f"{bucket}/table", partition_cols=["part"], filesystem=s3)
    dataset = pyarrow.dataset.dataset(f"{bucket}/table", filesystem=s3, format="parquet", partitioning="hive")
    chosen = dataset.to_table(filter=pyarrow.dataset.field("part") == 1)
    result["rows"] = [dataset.count_rows(), sum(chosen.column("value").to_pylist())]
    s3.delete_dir(f"{bucket}/table")
    s3.delete_file(big)
    left = s3.get_file_info(fs.FileSelector(bucket, recursive=True))
    result["left"] = sorted(info.path.removeprefix(f"{bucket}/") for info in left if info.type.name == "File")
    return result


if __name__ == "__main__":
    cases.main()
