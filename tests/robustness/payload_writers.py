"""Run by test_payload_directories in several processes at once: claims the directories and writes payloads.

    python payload_writers.py COUNT DIRECTORY...

Prints a JSON object: the number of every directory, and the payloads as [id, directory, length, crc64nvme].
"""

import json
import os
import sys
import time
from pathlib import Path

from s3verbs.storage.nvme_store import NvmePayloadStore


def main() -> None:
    store = NvmePayloadStore(
        [Path(name) for name in sys.argv[2:]],
        store_id=bytes(16),
        new_id=lambda: time.time_ns().to_bytes(8, "big") + os.urandom(8),
        reserve_bytes=0,
    )
    payloads = []
    for number in range(int(sys.argv[1])):
        writer = store.create(20_000, durable=number % 2 == 0)
        writer.write(memoryview(os.urandom(20_000)))
        payload = writer.seal(durable=number % 2 == 0)
        payloads.append([payload.id.hex(), payload.directory, payload.length, payload.crc64nvme])
    numbers = {str(path): number for number, path in store.directories.items()}
    print(json.dumps({"directories": numbers, "payloads": payloads}))


if __name__ == "__main__":
    main()
