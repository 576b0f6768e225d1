#!/usr/bin/env bash
# Scoring as a job of a running Ray cluster. The driver runs on a node, so that this shell may end.
#   RAY_API_SERVER_ADDRESS=http://HEAD:8265 examples/cluster/ray-job.sh /shared/photos /shared/run
set -euo pipefail
data=$1
out=$2
# The driver looks at the model first, so that it needs a GPU if the actors have some:
#   --entrypoint-num-gpus 1
ray job submit --no-wait --entrypoint-num-cpus 1 -- \
    hardsight score --model hf:google/vit-base-patch16-224 --data "$data" --out "$out" \
    --engine ray --ray-address auto --resume
