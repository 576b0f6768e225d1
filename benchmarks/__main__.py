"""All CPU benchmarks: ``python -m benchmarks``, or ``make bench``."""

from benchmarks import cli_start, embeddings, scoring, training

for benchmark in (cli_start, embeddings, scoring, training):
    benchmark.main([])
