# SPDX-License-Identifier: Apache-2.0

# The model of the delta log's protocol, at a small size; skipped where spin or gcc is absent.

add_test(NAME model COMMAND "${PROJECT_SOURCE_DIR}/docs/model/check.sh" small)
set_tests_properties(model PROPERTIES LABELS model TIMEOUT 900 COST 300 SKIP_RETURN_CODE 77)
