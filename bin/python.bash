# Sourced by the launchers: finds Python 3.11 or later and goes to the private virtual environment.
# Leaves the checkout in ROOT and, after make_venv, the environment in VENV.
set -eu
ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)

find_python() {
    local name
    for name in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null </dev/null; then
            PYTHON=$name
            return
        fi
    done
    echo "bin/${0##*/}: Python 3.11 or later is needed, and none was found on PATH" >&2
    exit 1
}

# make_venv run|test: what the commands need, or the test tools too.
make_venv() {
    find_python
    VENV=$("$PYTHON" "$ROOT/bin/venv.py" "$1" </dev/null) || exit 1
}
