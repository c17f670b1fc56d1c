# Sourced by tools/demo and tools/test: makes the project's .venv once and repairs it after an interruption.
#
#   prepare_venv EXTRA     sets $venv_python; ends the script with a clear word when it can't
#
# POSIX sh. Files inside .venv:
#   .zhc-made            we made this folder and may remove it
#   .zhc-busy            a set-up is running, or was interrupted: what is there can't be trusted
#   .zhc-stamp-EXTRA     written last; says for which pyproject.toml, Python and folder the set-up is complete
# Variables a user may set: PYTHON (interpreter), and pip's own (PIP_INDEX_URL, HTTPS_PROXY, ...).

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
venv=$root/.venv
venv_python=$venv/bin/python
oldest_minor=10
newest_minor=14

say() { printf '%s\n' "$*" >&2; }

# Each argument is a line of its own.
die() {
    printf '%s\n' "$@" >&2
    exit 69
}

# Prints "3.11" when $1 is a Python that we support, else fails.
supported_version() {
    "$1" -c "
import sys
if not (3, $oldest_minor) <= sys.version_info[:2] <= (3, $newest_minor):
    sys.exit(1)
print('%d.%d' % sys.version_info[:2])" 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        if version=$(supported_version "$candidate"); then
            python=$candidate
            return
        fi
    done
    die "No Python 3.$oldest_minor to 3.$newest_minor found. Install one (Debian, Ubuntu: apt-get install python3, as root)," \
        "or name it: PYTHON=/path/to/python3 $0"
}

# What the set-up depends on. Fails when the environment's own interpreter does not run any more.
wanted_stamp() {
    hash=$(sha256sum "$root/pyproject.toml") || return 1
    full=$("$venv_python" -c 'import sys; print(sys.version.split()[0])' 2>/dev/null) || return 1
    printf '%s python-%s %s\n' "${hash%% *}" "$full" "$root"
}

is_complete() {
    [ ! -e "$venv/.zhc-busy" ] && [ -e "$venv/.zhc-stamp-$1" ] && stamp=$(wanted_stamp) &&
        [ "$(cat "$venv/.zhc-stamp-$1")" = "$stamp" ]
}

# An environment that another set-up completed, for this interpreter and folder, may be added to.
is_usable() {
    [ ! -e "$venv/.zhc-busy" ] && stamp=$(wanted_stamp) || return 1
    for old in "$venv"/.zhc-stamp-*; do
        [ -e "$old" ] && [ "$(cut -d' ' -f2- "$old")" = "${stamp#* }" ] && return 0
    done
    return 1
}

make_venv() {
    if [ -e "$venv" ] && [ ! -e "$venv/.zhc-made" ]; then
        die "$venv exists and was not made by this script. Move it away and start again."
    fi
    find_python
    rm -rf "$venv" && mkdir "$venv" 2>/dev/null || die "Can't write $venv. Use a folder that belongs to you."
    touch "$venv/.zhc-made" "$venv/.zhc-busy"
    say "Making $venv with Python $version"
    log=$venv/setup.log
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv "$venv" >"$log" 2>&1 || die "Making the environment failed: $(tail -n 1 "$log")"
    elif "$python" -c 'import pip, venv' 2>/dev/null; then
        # Debian and Ubuntu split ensurepip off into python3-venv. The system's pip can put a pip into the environment.
        pip_home=$("$python" -c 'import os, pip; print(os.path.dirname(os.path.dirname(pip.__file__)))')
        "$python" -m venv --without-pip "$venv" >"$log" 2>&1 || die "Making the environment failed: $(tail -n 1 "$log")"
        PYTHONPATH=$pip_home PIP_USER=0 "$venv_python" -m pip install --ignore-installed pip >"$log" 2>&1 || pip_failed
    else
        die "Python's venv package is missing. Install it, then start again:" \
            "    apt-get install python$version-venv      (as root, or with sudo in front)"
    fi
}

# pip install "$@" into the environment, with readable progress. Everything that pip says goes to setup.log.
run_pip() {
    log=$venv/setup.log
    {
        PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_RETRIES=${PIP_RETRIES:-2} \
            "$venv_python" -m pip install "$@" 2>&1
        echo "pip ended with $?"
    } | tee "$log" | while IFS= read -r line; do
        case $line in
        Collecting*)
            name=${line#Collecting }
            name=${name%%[ <>=!~;\[]*}
            progress "  fetching $name"
            ;;
        "Installing collected packages: "*)
            names=$(printf '%s' "${line#*: }" | tr -d ' ')
            progress ""
            say "Installing $(printf '%s\n' "$names" | tr ',' '\n' | wc -l | tr -d ' ') packages, once"
            ;;
        esac
    done
    progress ""
    [ "$(tail -n 1 "$log")" = "pip ended with 0" ]
}

# One line that is written over, on a terminal only.
progress() {
    [ ! -t 2 ] || printf '\r\033[K%.79s' "$1" >&2
}

pip_failed() {
    if grep -qiE 'ProxyError|proxy' "$log"; then
        reason="The proxy (HTTPS_PROXY=${HTTPS_PROXY:-${https_proxy:-unset}}) does not let pip through."
    elif grep -qiE 'NewConnectionError|NameResolution|resolution|unreachable|timed out|Connection (refused|reset)' "$log"; then
        reason="The package index can't be reached: is this machine offline? Behind a proxy set HTTPS_PROXY;"
        reason="$reason with an index of your own set PIP_INDEX_URL."
    elif grep -qi 'No space left' "$log"; then
        reason="The disk is full."
    else
        reason="pip failed: $(grep -E '^ *(ERROR|[A-Za-z]+Error):' "$log" | tail -n 1 | sed 's/^ *//')"
    fi
    die "$reason" "What pip said is in $log. Start again when it is put right; nothing else needs cleaning up."
}

prepare_venv() {
    extra=$1
    is_complete "$extra" && return
    if command -v flock >/dev/null; then
        # Two of us at once would remove each other's half-made environment.
        exec 9>"$root/.venv.lock" || die "Can't write into $root. Use a copy that belongs to you."
        flock -n 9 || { say "Waiting for another set-up in this folder" && flock 9; }
        is_complete "$extra" && { exec 9>&-; return; }
    fi
    unset PYTHONHOME PYTHONPATH
    is_usable || make_venv
    touch "$venv/.zhc-busy"
    say "Setting up, once: looking for packages"
    run_pip --editable "$root[$extra]" || pip_failed
    # The types of TensorRT, without TensorRT itself, which they ask for and which is in no registry.
    [ "$extra" != all-tests ] || run_pip --no-deps 'tensorrt-stubs>=10.13,<10.14' || pip_failed
    wanted_stamp >"$venv/.zhc-stamp-new" && mv "$venv/.zhc-stamp-new" "$venv/.zhc-stamp-$extra"
    rm -f "$venv/.zhc-busy"
    exec 9>&-
}
