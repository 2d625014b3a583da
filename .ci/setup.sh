#!/usr/bin/env bash
# Set-up of a checkout, called by every make target: setup.sh [PROGRAM GROUP...], groups: compiler prometheus browser.
#
#   1. Debian packages for the groups that are asked for and missing: through apt-get when root, else listed with what
#      cannot run without them. With CI=true a package that stays missing ends the set-up.
#   2. A virtual environment in .venv with the pinned packages of constraints.txt. Done again only when
#      pyproject.toml, constraints.txt or this file changed.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
python=${PYTHON:-$(command -v python3.11 || command -v python3 || true)}
venv=.venv
stamp=$venv/.installed

if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  say "Python 3.11 or newer is needed (found: ${python:-none}); PYTHON=/path/to/python3.11 make ... names one" >&2
  exit 1
fi

# ---- Debian packages

missing=() lost=()
want() { # want PROGRAM PACKAGE WHAT-IS-LOST
  command -v "$1" >/dev/null && return
  lost+=("without $1: $3")
  case " ${missing[*]} " in *" $2 "*) ;; *) missing+=("$2") ;; esac
}
# A package of its own in newer releases of Debian, and a file of prometheus in older ones.
promtool_package() {
  if command -v apt-cache >/dev/null && apt-cache show promtool >/dev/null 2>&1; then echo promtool; else echo prometheus; fi
}
has_headers() {
  "$python" -c 'import pathlib, sysconfig, sys; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
}
look() {
  missing=() lost=()
  "$python" -c 'import ensurepip' 2>/dev/null || { missing+=(python3-venv); lost+=("without ensurepip: no virtual environment"); }
  for group in "$@"; do
    case $group in
      compiler)
        want c++ g++ "the native tap cannot be built; collectives are watched by the slower Python tap"
        has_headers || { missing+=(python3-dev); lost+=("without Python.h: the native tap cannot be built"); } ;;
      prometheus)
        want prometheus prometheus "the end-to-end tests of scraping do not run"
        want promtool "$(promtool_package)" "the rules are not checked"
        want prometheus-alertmanager prometheus-alertmanager "the end-to-end tests of alerts do not run" ;;
      browser)
        want chromium chromium "the pages are not looked at in a browser" ;;
      *) say "unknown group $group" >&2; exit 2 ;;
    esac
  done
}

look "$@"
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "reading the lists of Debian packages"
  apt-get -qq update </dev/null || say "apt-get update failed" >&2
  look "$@" # the lists say in which package a program is
  say "installing Debian packages: ${missing[*]}"
  # The servers are started by the tests on ports of their own; as services they would listen on every interface.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
    trap 'rm -f $policy' EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null || say "apt-get install failed" >&2
  look "$@"
fi
if [ ${#missing[@]} -gt 0 ]; then
  say "missing Debian packages: ${missing[*]} (apt-get install them as root)" >&2
  printf 'setup:   %s\n' "${lost[@]}" >&2
  if [ "${CI:-}" = true ]; then exit 1; fi
fi

# ---- Python packages

digest=$(cat pyproject.toml constraints.txt .ci/setup.sh | sha256sum)
if [ "$(cat $stamp 2>/dev/null)" != "$digest" ]; then
  began=$SECONDS
  [ -x $venv/bin/python ] || { say "making $venv with $("$python" --version)"; "$python" -m venv $venv; }
  pip="$venv/bin/python -m pip --disable-pip-version-check -qq --no-input"
  torch=$(grep '^torch==' constraints.txt)
  # torch comes first and by its exact version: left to the resolver, another build of several GB may be chosen.
  say "installing $torch"
  $pip install -c constraints.txt "$torch"
  say "installing the pinned packages of constraints.txt"
  $pip install -c constraints.txt setuptools pip
  $pip install -c constraints.txt --group dev
  $pip install -c constraints.txt --no-build-isolation --editable .
  printf '%s\n' "$digest" >$stamp
  say "done in $((SECONDS - began)) s"
fi
