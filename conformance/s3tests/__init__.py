"""Runs a checkout of ceph/s3-tests against an endpoint and compares the outcome with an expected list."""
