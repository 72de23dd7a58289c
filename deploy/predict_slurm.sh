#!/bin/bash
#SBATCH --job-name=clefq-predict --array=1-8 --gpus=1 --cpus-per-task=8 --requeue
# In a run folder on a shared file system:  sbatch predict_slurm.sh bf16 my-set
# A task that is requeued goes on where it was. When all are done:
#   clefq merge shards/my-set/bf16/*.parquet
set -euo pipefail
clefq predict "$1" --eval "$2" --engine vllm \
  --shard "${SLURM_ARRAY_TASK_ID}/${SLURM_ARRAY_TASK_MAX}"
