#!/bin/sh
# Installs SGLang 0.5.23 into a virtual environment of its own, since it pins another torch than the trainer's.
#   scripts/install-sglang.sh [FOLDER]     default: $AGENTRL_HOME/sglang, where `engine.kind=sglang` looks for it
# With an NVIDIA driver this is SGLang as published (several GB); without one it is the CPU selection of sglang-cpu.txt (1.8 GB).
set -eu
version=0.5.23
if [ "$(id -u)" = 0 ]; then home=/var/lib/agentrl; else home=$HOME/.local/share/agentrl; fi
folder=${1:-${AGENTRL_HOME:-$home}/sglang}
scripts=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
done_file=$folder/.agentrl-sglang
wanted=$(cat "$scripts/sglang-cpu.txt" "$scripts/install-sglang.sh" | cksum)
[ -f "$done_file" ] && [ "$(cat "$done_file")" = "$wanted" ] && exit 0
mkdir -p "$(dirname "$folder")"
"$scripts/make-venv.sh" "$folder"
pip() { "$folder/bin/python" -m pip --quiet --disable-pip-version-check install "$@"; }
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    pip "sglang==$version"
else
    pip -r "$scripts/sglang-cpu.txt"
    pip --no-deps "sglang==$version" xgrammar==0.2.7 apache-tvm-ffi==0.1.11
fi
echo "$wanted" >"$done_file"
