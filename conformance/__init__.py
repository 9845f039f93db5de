"""Checks and measurements for any S3 endpoint. Nothing here imports s3verbs."""
