"""The RDMA data plane. It imports neither the gateway nor the storage engine."""
