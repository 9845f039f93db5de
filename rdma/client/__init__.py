"""RDMA for S3 from the client: register memory, put from it, get into it."""
