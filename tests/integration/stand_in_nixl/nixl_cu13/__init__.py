"""Stands in for NIXL's bindings where the wheel is not installed: the calls of the benchmark, over botocore."""
