// SPDX-License-Identifier: Apache-2.0
#include "tools/common/parser.hpp"

#include <CLI/CLI.hpp>
#include <deque>
#include <optional>

namespace sparsecast::tools {

Condition Condition::range(int low, int high) {
  Condition made;
  made.kind_ = Demand::kIntegers;
  made.first_ = low;
  made.last_ = high;
  return made;
}

Condition Condition::range(double low, double high) {
  Condition made;
  made.kind_ = Demand::kNumbers;
  made.low_ = low;
  made.high_ = high;
  return made;
}

Condition Condition::positive() { return {}; }

Condition Condition::non_negative() {
  Condition made;
  made.kind_ = Demand::kNonNegative;
  return made;
}

Condition Condition::one_of(std::vector<std::string> members) {
  Condition made;
  made.kind_ = Demand::kMembers;
  made.members_ = std::move(members);
  return made;
}

Option* Option::required() {
  option_->required();
  return this;
}

Option* Option::type_name(const std::string& name) {
  option_->type_name(name);
  return this;
}

Option* Option::capture_default_str() {
  option_->capture_default_str();
  return this;
}

Option* Option::check(const Condition& condition) {
  switch (condition.kind_) {
    case Condition::Demand::kIntegers:
      option_->check(CLI::Range(condition.first_, condition.last_));
      break;
    case Condition::Demand::kNumbers:
      option_->check(CLI::Range(condition.low_, condition.high_));
      break;
    case Condition::Demand::kPositive:
      option_->check(CLI::PositiveNumber);
      break;
    case Condition::Demand::kNonNegative:
      option_->check(CLI::NonNegativeNumber);
      break;
    case Condition::Demand::kMembers:
      option_->check(CLI::IsMember(condition.members_));
      break;
  }
  return this;
}

Option* Option::check(const std::function<std::string(const std::string&)>& condition) {
  option_->check(condition);
  return this;
}

Option* Option::expected(int least, int most) {
  option_->expected(least, most);
  return this;
}

Option* Option::allow_extra_args(bool allowed) {
  option_->allow_extra_args(allowed);
  return this;
}

/// Options and commands that a parser owns, and the CLI11 parser of the program.
struct Parser::Children {
  std::unique_ptr<CLI::App> program;
  std::deque<Option> options;
  std::vector<std::unique_ptr<Parser>> commands;
};

Parser::Parser(const std::string& about, const std::string& name)
    : app_(nullptr), children_(std::make_unique<Children>()) {
  children_->program = std::make_unique<CLI::App>(about, name);
  app_ = children_->program.get();
}

Parser::Parser(CLI::App* app) : app_(app), children_(std::make_unique<Children>()) {}

Parser::~Parser() = default;

Parser* Parser::add_subcommand(const std::string& name, const std::string& help) {
  children_->commands.push_back(std::unique_ptr<Parser>(new Parser(app_->add_subcommand(name, help))));
  return children_->commands.back().get();
}

Option* Parser::keep(CLI::Option* option) { return &children_->options.emplace_back(option); }

template <class T>
Option* Parser::add_option(const std::string& names, T& value, const std::string& help) {
  return keep(app_->add_option(names, value, help));
}

template Option* Parser::add_option(const std::string&, std::string&, const std::string&);
template Option* Parser::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option* Parser::add_option(const std::string&, int&, const std::string&);
template Option* Parser::add_option(const std::string&, std::uint32_t&, const std::string&);
template Option* Parser::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option* Parser::add_option(const std::string&, double&, const std::string&);
template Option* Parser::add_option(const std::string&, std::optional<std::uint64_t>&, const std::string&);

Option* Parser::add_flag(const std::string& names, bool& value, const std::string& help) {
  return keep(app_->add_flag(names, value, help));
}

void Parser::add_renamed(const std::string& old_name, const std::string& new_name) {
  app_->add_option_function<std::vector<std::string>>(old_name,
                                                      [old_name, new_name](const std::vector<std::string>&) {
                                                        throw CLI::ValidationError(old_name,
                                                                                   "has another name now: " + new_name);
                                                      })
      ->expected(0, 1)
      ->group("");
}

void Parser::footer(const std::string& text) { app_->footer(text); }

void Parser::require_subcommand(int count) { app_->require_subcommand(count); }

void Parser::set_version_flag(const std::string& text) { app_->set_version_flag("--version", text); }

bool Parser::parse(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err, int& exit_code) {
  try {
    app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    exit_code = app_->exit(error, out, err) == 0 ? 0 : 1;
    return false;
  }
  return true;
}

bool Parser::parsed() const { return app_->parsed(); }

}  // namespace sparsecast::tools
