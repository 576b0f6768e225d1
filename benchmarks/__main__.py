"""All CPU benchmarks: ``python -m benchmarks``, or ``make bench``."""

from benchmarks import cli_start, embeddings, scoring

for benchmark in (cli_start, embeddings, scoring):
    benchmark.main([])
