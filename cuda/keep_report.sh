#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# keep_report.sh COMPILER ARGUMENT...: runs the compiler and keeps its output in OBJECT.report, where OBJECT is the
# argument of -o. ptxas prints there what each kernel takes, for CheckResources.cmake. All other lines are shown as
# well.
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
