"""Load benchmarks: a closed-loop client in C, peers on the same machine, one table per run."""
