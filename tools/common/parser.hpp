// SPDX-License-Identifier: Apache-2.0
#pragma once

// Command line parser: a narrow interface to CLI11 in its own terms. The CLI11 header takes seconds to compile, so that
// only parser.cpp includes it.

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): theirs.
class App;
class Option;
}  // namespace CLI

namespace sparsecast::tools {

/// A condition on the text of an option's argument. A text that fails it is a usage error that names the option.
class Condition {
 public:
  /// Accepts integers in [low, high].
  static Condition range(int low, int high);
  /// Accepts numbers in [low, high].
  static Condition range(double low, double high);
  /// Accepts numbers above 0.
  static Condition positive();
  /// Accepts numbers from 0 up.
  static Condition non_negative();
  /// Accepts the texts in `members`.
  static Condition one_of(std::vector<std::string> members);

 private:
  friend class Option;
  enum class Demand : std::uint8_t { kIntegers, kNumbers, kPositive, kNonNegative, kMembers } kind_ = Demand::kPositive;
  int first_ = 0;
  int last_ = 0;
  double low_ = 0;
  double high_ = 0;
  std::vector<std::string> members_;
};

/// One option of a command. Owned by its parser; every method returns the option itself, so that calls can be chained.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  /// Makes a command line without this option an error.
  Option* required();
  /// Sets the name that the help shows for the argument of the option.
  Option* type_name(const std::string& name);
  /// Makes the help show, as the default, the value that the option's variable has now.
  Option* capture_default_str();
  /// Makes an argument that fails `condition` a usage error.
  Option* check(const Condition& condition);
  /// Makes an argument a usage error if condition(argument) returns a sentence, which is then printed, instead of "".
  Option* check(const std::function<std::string(const std::string&)>& condition);
  /// Sets the least and the largest number of arguments of the option.
  Option* expected(int least, int most);
  /// Sets whether several arguments may follow one occurrence of the option.
  Option* allow_extra_args(bool allowed);

 private:
  CLI::Option* option_;
};

/// The parser of the command line of the program, or of one of its commands.
class Parser {
 public:
  /// Makes the parser of the program `name`, which prints `about` at the top of its help.
  Parser(const std::string& about, const std::string& name);
  ~Parser();
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  /// Adds the command `name` and returns its parser, which this parser owns.
  Parser* add_subcommand(const std::string& name, const std::string& help);
  /// Adds an option that sets `value`, which must outlive parsing. `T` is std::string, std::vector<std::string>, int,
  /// std::uint32_t, std::uint64_t, double or std::optional<std::uint64_t>.
  template <class T>
  Option* add_option(const std::string& names, T& value, const std::string& help);
  /// Adds an option without an argument that sets `value` to true, or to false if its name is given as "!--no-x".
  Option* add_flag(const std::string& names, bool& value, const std::string& help);
  /// Makes the use of an option under its old name an error that says the new name. The help does not show it.
  void add_renamed(const std::string& old_name, const std::string& new_name);
  /// Makes the help end with `text`.
  void footer(const std::string& text);
  /// Makes a command line an error unless it has `count` commands.
  void require_subcommand(int count);
  /// Adds the option --version, which prints `text` and ends the program.
  void set_version_flag(const std::string& text);

  /// Parses the arguments (without the name of the program). Returns true if a command must run. Otherwise help or an
  /// error has been printed, and `exit_code` is 0 or 1.
  bool parse(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err, int& exit_code);
  /// Returns whether the last parse() of the program's parser found this command in the command line.
  bool parsed() const;

 private:
  struct Children;
  explicit Parser(CLI::App* app);
  Option* keep(CLI::Option* option);

  CLI::App* app_;
  std::unique_ptr<Children> children_;
};

}  // namespace sparsecast::tools
