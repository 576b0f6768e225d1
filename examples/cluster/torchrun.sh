#!/usr/bin/env bash
# A training recipe on the GPUs of one machine; Lightning finds the ranks that torchrun starts.
#   examples/cluster/torchrun.sh recipe.toml 2
set -euo pipefail
recipe=$1
ranks=$2
torchrun --standalone --nproc-per-node "$ranks" -m hardsight train "$recipe" --out runs/ranks
