#!/usr/bin/env bash
# Speed on one CUDA GPU in under 8 minutes: stock, dense and skipping by turns; writes benchmarks/results/gpu.json.
# UNTESTED ON CUDA: written where no GPU could be had, and run on a CPU only (benchmarks/gpu.py --device cpu --quick).
# Needs a Python with laval and a CUDA build of torch: PYTHON=... benchmarks/gpu.sh [options of gpu.py]
set -euo pipefail
cd "$(dirname "$0")/.."

exec timeout 480 "${PYTHON:-python3}" benchmarks/gpu.py "$@"
