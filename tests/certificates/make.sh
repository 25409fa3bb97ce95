#!/bin/sh
# Makes the certificates of the TLS tests: a CA, a server's for loopback, and a CA that signed
# nothing. Valid from 2020 to 2120, and protecting nothing: the server's key lies open here.
set -eu
here=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat >openssl.cnf <<END
[ca]
default_ca = tests
[tests]
database = index
new_certs_dir = .
rand_serial = yes
policy = any
unique_subject = no
default_md = sha256
[any]
commonName = supplied
[req]
distinguished_name = none
[none]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END

# sign NAME EXTENSIONS OPTIONS...
sign() {
    name=$1 extensions=$2
    shift 2
    : >index
    openssl req -new -newkey rsa:2048 -nodes -config openssl.cnf -subj "/CN=tickmind test $name" \
        -keyout "$name.key" -out "$name.csr"
    openssl ca -batch -notext -config openssl.cnf -extensions "$extensions" -in "$name.csr" \
        -startdate 20200101000000Z -enddate 21200101000000Z -out "$name.crt" "$@"
}

sign ca authority -selfsign -keyfile ca.key
sign other-ca authority -selfsign -keyfile other-ca.key
sign server server -cert ca.crt -keyfile ca.key
cp ca.crt "$here/ca.pem"
cp other-ca.crt "$here/other-ca.pem"
cat server.key server.crt >"$here/server.pem"
