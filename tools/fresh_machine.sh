#!/bin/bash
# fresh_machine.sh REPO 'COMMAND' ['OFFLINE COMMAND'] : runs COMMAND on a copy of REPO (what git tracks, and new files
# that it does not ignore) in a new minimal Debian 12 chroot, then OFFLINE COMMAND there with only a loopback network.
# Proves that set-up installs all that is needed, and that the tests fetch nothing. Exit: the command's status, or 77
# where a chroot cannot be made.
#   FRESH_CACHE=dir   where the base system (200 MB, rebuilt weekly) and the chroot are put; default build/fresh
#   FRESH_CCACHE=dir  a compile cache to begin with. It is asked only after the compiler and every header it names have
#                     been found there and are the same, so a package that set-up forgets is still missed
#   FRESH_KEEP=1      keeps the chroot for a look
set -euo pipefail
repo=$(realpath "${1:?repo}") online=${2:?command} offline=${3:-}
suite=bookworm
cache=${FRESH_CACHE:-$repo/build/fresh}

if [ "$(id -u)" != 0 ] || ! chroot / true 2>/dev/null || ! unshare --mount --pid --net --fork true 2>/dev/null; then
  echo "fresh: skipped: needs root, chroot and namespaces" >&2
  exit 77
fi
mkdir -p "$cache"
base=$cache/$suite-minbase.tar
start=$SECONDS

if [ ! -s "$base" ] || [ -n "$(find "$base" -mtime +7)" ]; then
  if ! command -v debootstrap >/dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
  fi
  mirror() { apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Release: $1" | head -1; }
  main=$(mirror "$suite")
  security=$(mirror "$suite-security")
  if [ -z "$main" ]; then
    echo "fresh: skipped: this machine's apt knows no mirror of Debian $suite" >&2
    exit 77
  fi
  tmp=$(mktemp -d "$cache/boot.XXXX")
  debootstrap --variant=minbase "$suite" "$tmp" "$main" >"$cache/debootstrap.log" 2>&1 ||
    { tail -5 "$cache/debootstrap.log" >&2; rm -rf --one-file-system "$tmp"; exit 1; }
  {
    echo "deb $main $suite main"
    echo "deb $main $suite-updates main"
    [ -z "$security" ] || echo "deb $security $suite-security main"
  } >"$tmp/etc/apt/sources.list"
  rm -f "$tmp"/var/cache/apt/archives/*.deb
  tar -C "$tmp" -cf "$base.new" .
  mv "$base.new" "$base"
  rm -rf --one-file-system "$tmp"
fi
echo "fresh: base system ready, $((SECONDS - start)) s"

root=$(mktemp -d "$cache/root.XXXX")
clean_up() { if [ -n "${FRESH_KEEP:-}" ]; then echo "fresh: kept $root"; else rm -rf --one-file-system "$root"; fi; }
trap clean_up EXIT
tar -C "$root" -xf "$base"
chmod 755 "$root"                                          # else apt's own user cannot reach its folders
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/fresh"    # thrown away soon: no fsync per file
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"  # packages start no daemons
chmod 755 "$root/usr/sbin/policy-rc.d"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
# What this host needs to reach its registries (certificates, pip's settings), not what the project needs.
ca=
if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
  crt=/etc/fresh-ca.crt
  cp -L /etc/ssl/certs/ca-certificates.crt "$root$crt"
  for name in SSL_CERT_FILE PIP_CERT CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS CARGO_HTTP_CAINFO; do ca+=" $name=$crt"; done
fi
[ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/"
if [ -d "${FRESH_CCACHE:-}" ]; then
  mkdir -p "$root/root/.cache"
  cp -a --reflink=auto "$FRESH_CCACHE" "$root/root/.cache/ccache"
fi
mkdir -p "$root/src"
(cd "$repo" && git ls-files -z -co --exclude-standard |
  while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
  tar --null -T - -cf -) | tar -C "$root/src" -xf -

# enter COMMAND [unshare option] : own mounts and processes, so whatever the command leaves running ends with it.
enter() {
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child ${2:-} -- bash -c '
    root=$1 command=$2 ca=$3
    mount --make-rprivate /
    mount --bind "$root" "$root"  # a mount point of its own: ip netns changes how / is shared
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    ip link set lo up 2>/dev/null
    exec chroot "$root" env -i HOME=/root USER=root LANG=C.UTF-8 CI=true DEBIAN_FRONTEND=noninteractive \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      $ca \
      bash -c "cd /src && $command"' _ "$root" "$1" "$ca" </dev/null
}

rc=0
at=$SECONDS
enter "$online" || rc=$?
echo "fresh: '$online' ended with $rc after $((SECONDS - at)) s"
if [ $rc = 0 ] && [ -n "$offline" ]; then
  at=$SECONDS
  enter "$offline" --net || rc=$?
  echo "fresh: offline '$offline' ended with $rc after $((SECONDS - at)) s"
fi
echo "fresh: $((SECONDS - start)) s in all, $(du -sxm "$root" | cut -f1) MB"
# 77 means "no chroot here" to our caller; a command that says it failed inside.
[ $rc != 77 ] || rc=1
exit $rc
