#!/bin/bash
# tools/setup.sh [build|test|dev] : installs what this stage needs and is quick when nothing is missing.
# Debian 12 is what CI runs; Ubuntu 24.04 names are given where they differ, and are not tested.
# Exit 77: something is missing and this user may not install it; the apt line to run is printed.
set -euo pipefail
stage=${1:-build}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ID=unknown PRETTY_NAME="an unknown system"
[ ! -r /etc/os-release ] || . /etc/os-release

# "Debian name:Ubuntu name" where they differ. Chosen by /etc/os-release: a new machine has no package lists yet.
build=(g++ cmake ninja-build pkg-config ccache git ca-certificates procps xz-utils
  libboost1.81-dev:libboost1.83-dev libsimdjson-dev libfmt-dev libcli11-dev libtomlplusplus-dev doctest-dev
  libxxhash-dev libucx-dev libcurl4-openssl-dev libssl-dev libgrpc++-dev libprotobuf-dev protobuf-compiler
  python3 python3-pip)
tests=(openssl python3-venv libsimde-dev clang-19 libclang-rt-19-dev etcd-server iproute2)
dev=(clang-format-19 clang-tidy-19)
case $stage in
  build) want=("${build[@]}") ;;
  test) want=("${build[@]}" "${tests[@]}") ;;
  dev) want=("${build[@]}" "${tests[@]}" "${dev[@]}") ;;
  *) echo "usage: tools/setup.sh [build|test|dev]" >&2; exit 2 ;;
esac

# A Rust of one's own counts when it is new enough for the text library; Debian's plain `rustc` is not.
rust_is_new_enough() {
  local rustc version
  rustc=$(command -v rustc || echo "$HOME/.cargo/bin/rustc")
  version=$("$rustc" --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\).*/\1/p') && [ "${version:-0}" -ge 87 ]
}
rust_is_new_enough || want+=(rustc-web:rustc-1.89 cargo-web:cargo-1.89)

# name_for ENTRY : the entry's package name on this system.
name_for() { if [ "$ID" = ubuntu ]; then echo "${1##*:}"; else echo "${1%%:*}"; fi; }

names=()
for entry in "${want[@]}"; do names+=("${entry%%:*}" "${entry##*:}"); done
have=$(dpkg-query -W -f='${db:Status-Status} ${binary:Package}\n' "${names[@]}" 2>/dev/null |
  sed -n 's/^installed \([^:]*\).*/ \1 /p' || true)
missing=()
for entry in "${want[@]}"; do
  [[ $have == *" ${entry%%:*} "* || $have == *" ${entry##*:} "* ]] || missing+=("$(name_for "$entry")")
done

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ]; then as_root=()
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root=(sudo -n)
  elif command -v sudo >/dev/null && [ -t 0 ]; then as_root=(sudo)
  else
    echo "setup: packages are missing, and this user cannot use sudo. An administrator can run:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 77
  fi
  case "$ID:${VERSION_ID:-}" in
    debian:12 | ubuntu:24.04) ;;
    *) echo "setup: $PRETTY_NAME is not tested; trying Debian's names" >&2 ;;
  esac
  echo "setup: installing ${missing[*]}"
  # Another apt may hold the lock for minutes on a machine that has just started.
  "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
    install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  # The tests start an etcd of their own; the package's service, on the ports that all know, is not wanted here.
  if [[ " ${missing[*]} " == *" etcd-server "* && -d /run/systemd/system ]]; then
    "${as_root[@]}" systemctl disable -q --now etcd || true
  fi
fi

# Python packages for the tests live in a venv; Debian's pip refuses to install anywhere else.
if [ "$stage" != build ]; then
  venv=build/venv
  # A venv is tied to its path: one that came with a copied tree is made anew.
  "$venv/bin/python" -c "import sys; sys.exit(sys.prefix != '$PWD/$venv')" 2>/dev/null ||
    python3 -m venv --clear "$venv"
  if ! cmp -s tools/requirements.txt "$venv/requirements.done"; then
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -r tools/requirements.txt
    cp tools/requirements.txt "$venv/requirements.done"
  fi
fi
