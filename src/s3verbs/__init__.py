"""An S3-compatible object store whose payloads can bypass HTTP."""

__version__ = "0.1.0"
