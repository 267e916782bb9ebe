// SPDX-License-Identifier: Apache-2.0

// sparsecast log keygen, log keys: create signing keys, and choose which keys may sign.

#include <fmt/format.h>

#include <algorithm>

#include "core/file_tree.hpp"
#include "sparsecast/error.hpp"
#include "tools/common/options.hpp"
#include "tools/common/report.hpp"
#include "tools/log/log_commands.hpp"
#include "tools/log/log_lead.hpp"

namespace sparsecast::tools {
namespace {

struct KeygenFlags {
  std::string output;
  bool json = false;
};

int run_keygen(Console& console, const KeygenFlags& flags) {
  const std::shared_ptr<const SigningKey> key = SigningKey::generate();
  key->save(console.fs, flags.output);
  if (flags.json) {
    Report report;
    report.add("key_file", flags.output, "");
    report.add("public_key", to_string(key->public_key()), "");
    report.print(console, true);
  } else {
    console.out << to_string(key->public_key()) << '\n';
  }
  return kExitGood;
}

struct KeysFlags {
  LogFlags log;
  LeadFlags lead;
  std::vector<std::string> add;
  std::vector<std::string> remove;
  std::string label;
  bool json = false;
};

std::vector<PublicKey> keys_of(Console& console, const std::vector<std::string>& texts) {
  LogFlags flags;
  flags.trust = texts;
  return flags.pinned(console.fs).pinned;
}

int run_keys(Console& console, const KeysFlags& flags) {
  OpenLog log(console.fs, flags.log);
  LogCommit head = log.head();
  std::vector<PublicKey> keys = head.keys;
  for (const PublicKey& key : keys_of(console, flags.remove)) {
    if (std::erase(keys, key) == 0) {
      throw Error(ErrorCode::kUsage, "it is not one of the log's keys, so it cannot be removed", to_string(key));
    }
  }
  for (const PublicKey& key : keys_of(console, flags.add)) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  const bool changes = !std::is_permutation(keys.begin(), keys.end(), head.keys.begin(), head.keys.end());
  if (changes) {
    if (keys.empty()) throw Error(ErrorCode::kUsage, "the last key cannot be removed", log.store->location());
    const std::string state_path = publisher_state_path(console.fs, flags.log.location, "here");
    Leader leader(console, log, flags.lead, state_path, {}, head);
    const std::string scratch = temporary_name(console.fs, state_path);
    auto table = std::make_shared<TensorTable>(read_log_table(console.fs, log, head, scratch));
    leader.lead(std::move(table), head.digest);
    head = leader.writer().set_keys(keys, flags.label);
  }
  Report report;
  report.add("log", log.store->location(), "log");
  report.add("version", head.version, "version");
  report.add("changed", changes, changes ? "changed" : "", "the keys, by a version of their own");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string text;
  for (const PublicKey& key : head.keys) {
    rows.push_back(to_string(key));
    text += (text.empty() ? "" : "\n      ") + to_string(key);
  }
  report.add("keys", std::move(rows), "keys", text.empty() ? "none: the log is unsigned" : text);
  report.print(console, flags.json);
  return kExitGood;
}

}  // namespace

AddedCommand add_log_keygen(Parser& log, Console& console) {
  auto flags = std::make_shared<KeygenFlags>();
  Parser* parser = log.add_subcommand("keygen", "Make a key pair; prints the public key");
  parser->add_option("-o,--output", flags->output, "The secret key goes here, readable by you alone; must not exist")
      ->required()
      ->type_name("FILE");
  add_json(*parser, flags->json);
  parser->footer(
      "Ed25519. Give FILE to the publisher (--key) and the printed line to the readers (--trust).\n\n"
      "Example:\n"
      "  sparsecast log keygen -o publisher.key > publisher.pub");
  return {parser, [flags, &console] { return run_keygen(console, *flags); }};
}

AddedCommand add_log_keys(Parser& log, Console& console) {
  auto flags = std::make_shared<KeysFlags>();
  Parser* parser = log.add_subcommand("keys", "Show or change the keys that may sign");
  flags->log.add_to(*parser);
  parser->add_option("--add", flags->add, "This public key may sign from here on; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY|FILE");
  parser->add_option("--remove", flags->remove, "This one may not any more; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY|FILE");
  flags->lead.add_to(*parser);
  add_label(*parser, flags->label);
  add_json(*parser, flags->json);
  parser->footer(
      "A change is a version of its own, signed by a key that may sign still (--key). Readers who pinned an older key\n"
      "follow the change by themselves. To rotate: --add the new key, publish with it, then --remove the old one.\n\n"
      "Example:\n"
      "  sparsecast log keys /shared/log --add next.pub --key publisher.key --state trainer.publisher");
  return {parser, [flags, &console] { return run_keys(console, *flags); }};
}

}  // namespace sparsecast::tools
