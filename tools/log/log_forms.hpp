// SPDX-License-Identifier: Apache-2.0
#pragma once

// Output formats of `sparsecast log status`.

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "tools/log/log_survey.hpp"

namespace sparsecast::tools {

/// Prints a summary of `survey` with a picture 64 columns wide. With `unicode`, the picture has block and line
/// characters, otherwise only ASCII.
void print_status(const LogSurvey& survey, bool unicode, std::ostream& out);

/// Returns `survey` as the JSON object whose keys docs/cli.md lists.
nlohmann::ordered_json status_json(const LogSurvey& survey);

}  // namespace sparsecast::tools
