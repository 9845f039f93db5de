"""The RDMA-for-S3 contract as a table of cases, run against any server that speaks it. Imports nothing of s3verbs."""
