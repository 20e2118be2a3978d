#!/usr/bin/env bash
# Makes certificates to try TLS with: an authority, a server's certificate and a client's, whose name
# is a SPIFFE URI. They are good for 30 days; who wants more has an authority of his own.
#
#   deploy/make_certificates.sh [--dir=DIR] [--host=NAME]... [--ip=ADDRESS]... [--client=URI]
#
#   --dir      where they go: ca.crt, server.crt, server.key, client.crt, client.key (certificates)
#   --host     a name of the server (localhost)
#   --ip       an address of the server (127.0.0.1 and ::1)
#   --client   the client's name (spiffe://normd.example/client)
#
# Files that are there already are replaced, each as a whole, so a server that runs on them takes the
# new ones. The authority is made once and kept, as long as its key (ca.key) is there.
set -euo pipefail

dir=certificates
hosts=()
addresses=()
client=spiffe://normd.example/client
days=30
for argument in "$@"; do
  case $argument in
    --dir=?*) dir=${argument#*=} ;;
    --host=?*) hosts+=("${argument#*=}") ;;
    --ip=?*) addresses+=("${argument#*=}") ;;
    --client=?*) client=${argument#*=} ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit ;;
    *) echo "make_certificates: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done
[[ ${#hosts[@]} -gt 0 ]] || hosts=(localhost)
[[ ${#addresses[@]} -gt 0 ]] || addresses=(127.0.0.1 ::1)

command -v openssl >/dev/null || { echo 'make_certificates: openssl is not installed' >&2; exit 1; }
umask 077
mkdir -p "$dir"
work=$(mktemp -d "$dir/.new.XXXXXX")
trap 'rm -rf "$work"' EXIT

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

# sign NAME SUBJECT EXTENSIONS: a key and its certificate.
sign() {
  new_key "$work/$1.key"
  openssl req -new -key "$work/$1.key" -subj "/CN=$2" -out "$work/$1.csr"
  printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n%s\n' "$3" \
    >"$work/$1.ext"
  openssl x509 -req -in "$work/$1.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -days "$days" -sha256 \
    -extfile "$work/$1.ext" -out "$work/$1.crt" 2>/dev/null
  # The key first: with the certificate beside it, the pair is whole.
  mv "$work/$1.key" "$dir/$1.key"
  mv "$work/$1.crt" "$dir/$1.crt"
}

if [[ ! -e $dir/ca.key || ! -e $dir/ca.crt ]]; then
  new_key "$work/ca.key"
  openssl req -x509 -new -key "$work/ca.key" -sha256 -days "$days" -subj '/CN=normd try-out authority' \
    -addext 'basicConstraints=critical,CA:TRUE' -addext 'keyUsage=critical,keyCertSign,cRLSign' \
    -out "$work/ca.crt"
  mv "$work/ca.key" "$dir/ca.key"
  mv "$work/ca.crt" "$dir/ca.crt"
fi

names=$(printf 'DNS:%s,' "${hosts[@]}")$(printf 'IP:%s,' "${addresses[@]}")
sign server "${hosts[0]}" "extendedKeyUsage=serverAuth"$'\n'"subjectAltName=${names%,}"
sign client client "extendedKeyUsage=clientAuth"$'\n'"subjectAltName=URI:$client"
chmod 644 "$dir"/*.crt
echo "$dir: ca.crt server.crt server.key client.crt client.key, good for $days days"
