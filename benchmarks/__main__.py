"""All CPU benchmarks: ``python -m benchmarks``, or ``make bench``."""

from benchmarks import adapting, cli_start, embeddings, scoring, selection, training

for benchmark in (adapting, cli_start, embeddings, scoring, selection, training):
    benchmark.main([])
