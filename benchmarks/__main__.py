"""All CPU benchmarks: ``python -m benchmarks``, or ``make bench``."""

from benchmarks import cli_start, embeddings, scoring, selection, training

for benchmark in (cli_start, embeddings, scoring, selection, training):
    benchmark.main([])
