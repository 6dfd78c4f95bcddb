#!/bin/sh
# Creates a virtual environment; on Debian as root it installs python3-venv when Python lacks it.
set -eu
venv=${1:?usage: make-venv.sh FOLDER}
python=${PYTHON:-python3}
[ -x "$venv/bin/pip" ] && exit 0
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "agentrl needs Python 3.11 or newer; $python is $("$python" --version 2>&1). Set PYTHON to another interpreter." >&2
    exit 3
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
    else
        echo "$python can't create virtual environments: install the package python3-venv." >&2
        exit 3
    fi
fi
"$python" -m venv "$venv"
