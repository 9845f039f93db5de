#!/bin/sh
# exported_symbols.sh LIBRARY LIST: fails when the library exports other symbols than the list names.
set -eu
nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | LC_ALL=C sort | diff "$2" - ||
  { echo "$1 exports other symbols than $2 (< list, > library): is the interface meant to change?" >&2; exit 1; }
