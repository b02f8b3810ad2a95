"""What the course teaches, from scratch: all-reduce, data parallelism in buckets, BatchNorm over all ranks."""
