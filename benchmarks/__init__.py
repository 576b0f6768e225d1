"""Benchmarks: peer and ours side by side in one run; never timed tests."""
