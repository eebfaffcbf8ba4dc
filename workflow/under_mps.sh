#!/bin/bash
# Run a command whose processes share a GPU: under an MPS daemon of this job alone, if NVIDIA's program for it starts.

# Slurm warns all processes. The trainings save their states; this script waits for them.
trap : TERM
folder=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$folder CUDA_MPS_LOG_DIRECTORY=$folder
if type -P nvidia-cuda-mps-control >/dev/null && nvidia-cuda-mps-control -d; then
    # The daemon has the GPU that Slurm gave. For its clients, that is number 0.
    CUDA_VISIBLE_DEVICES=0 "$@"
    status=$?
    echo quit | nvidia-cuda-mps-control
else
    echo "recaps: no MPS on $HOSTNAME (nvidia-cuda-mps-control), so the trainings take turns on the GPU" >&2
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    "$@"
    status=$?
fi
rm -rf "$folder"
exit $status
