#!/usr/bin/env bash
# Ray on the nodes of a Slurm allocation, and one scoring run on it.
#   sbatch examples/cluster/slurm.sh /shared/photos /shared/run
#SBATCH --job-name=hardsight
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-task=1
#SBATCH --time=12:00:00
#SBATCH --requeue
set -euo pipefail
data=$1
out=$2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=6379
export RAY_USAGE_STATS_ENABLED=0
# A token of this job alone: whoever reaches the ports of a cluster without one can run code on it,
# and if the head finds a token of yours while the other nodes do not use it, they cannot join.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    ray start --head --port="$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 20
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$head" --overlap \
    ray start --address="$head:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 20

# A job that was requeued goes on where it stopped: --resume also begins a run that is not there.
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    hardsight score --model hf:google/vit-base-patch16-224 --data "$data" --out "$out" \
    --engine ray --ray-address "$head:$port" --resume
