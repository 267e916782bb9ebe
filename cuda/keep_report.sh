#!/bin/sh
# COMPILER ARGUMENT...: runs it, and leaves what it prints in OBJECT.report, for the object that -o names: there ptxas
# says what each kernel takes (CheckResources.cmake). Other lines are shown, too.
previous=
object=
for argument; do
  if [ "$previous" = -o ]; then object=$argument; fi
  previous=$argument
done
"$@" >"$object.report" 2>&1
code=$?
grep -v -e '^ptxas info' -e '^    [0-9]* bytes stack frame' "$object.report" >&2
exit $code
