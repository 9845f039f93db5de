"""The storage engine: LMDB metadata, payload files on local NVMe."""
