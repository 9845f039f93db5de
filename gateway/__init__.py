"""The S3 endpoint: HTTP, authentication, operations, processes."""
