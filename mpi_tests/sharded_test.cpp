// SPDX-License-Identifier: Apache-2.0

// Trainers and engines that cut the same tensors differently, 20 versions each.

#include "sharded_scenes.hpp"

namespace sparsecast::mpi_test {
namespace {

void add_outer(LayoutBuilder& builder, std::uint64_t rows) {
  builder.tensor({"model.embed_tokens.weight", DType::kBF16, {rows, 64}});
  builder.tensor({"lm_head.weight", DType::kBF16, {rows, 64}});
}

void run_scene(Case& running, const ShardedScene& scene) {
  const SubWorld world(true);
  ShardedMember member(running, scene);
  running.expect_success(member.regroup(world), "regroup");
  member.run(kShardedVersions);
  if (member.serves()) running.expect_success(outcome_of([&] { member.subscriber().audit(); }), "audit");
}

void fsdp8_to_tp2(Case& running) {
  run_scene(running, {{"trainer", dense_fsdp(8, 2, 1000), range_of_ranks(0, 8)},
                      {{"engine", dense_engine(2, 2, 1000), range_of_ranks(6, 2)}}});
}
const Registration kFsdp{"sharded_fsdp8_to_tp2", fsdp8_to_tp2};

void tp4_pp2_to_two_engines(Case& running) {
  const auto engine = dense_engine(2, 2, 1000);
  run_scene(running, {{"trainer", dense_megatron(4, 2, 1000), range_of_ranks(0, 8)},
                      {{"a", engine, range_of_ranks(4, 2)}, {"b", engine, range_of_ranks(6, 2)}}});
}
const Registration kMegatron{"sharded_tp4_pp2_to_two_tp2", tp4_pp2_to_two_engines};

void ep4_pp2_to_ep8(Case& running) {
  run_scene(running, {{"trainer", experts_megatron(4), range_of_ranks(0, 8)},
                      {{"engine", experts_engine(8, experts_in_order()), range_of_ranks(0, 8)}}});
}
const Registration kExperts{"sharded_ep4_pp2_to_ep8", ep4_pp2_to_ep8};

void padded_vocabulary(Case& running) {
  // 997 rows: 1024 in the trainer's halves of 512, 1152 in the engine's thirds of 384.
  LayoutBuilder trainer({Mesh{{"tp", 2}}});
  LayoutBuilder engine({Mesh{{"tp", 3}}});
  for (LayoutBuilder* const builder : {&trainer, &engine}) add_outer(*builder, 997);
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    trainer.add(name, {name}, Cut::vocab_parallel({"tp"}, 256));
    engine.add(name, {name}, Cut::vocab_parallel({"tp"}, 192));
  }
  run_scene(running, {{"trainer", share(std::move(trainer)), range_of_ranks(0, 2)},
                      {{"engine", share(std::move(engine)), range_of_ranks(2, 3)}}});
}
const Registration kPadded{"sharded_padded_vocabulary", padded_vocabulary};

void tied_embeddings(Case& running) {
  // The trainer's stages each have a copy of the one tensor; the engine has it once, under both names.
  LayoutBuilder trainer({Mesh{{"pp", 2}}});
  LayoutBuilder engine({Mesh{{"tp", 2}}});
  for (LayoutBuilder* const builder : {&trainer, &engine}) {
    add_outer(*builder, 512);
    builder->tie("lm_head.weight", "model.embed_tokens.weight");
  }
  trainer.add("embedding", {"model.embed_tokens.weight"}, Cut::replicate(), {{"pp", {0}}});
  trainer.add("output_layer", {"lm_head.weight"}, Cut::replicate(), {{"pp", {1}}});
  engine.add("embed_tokens", {"model.embed_tokens.weight"}, Cut::vocab_parallel({"tp"}, 64));
  run_scene(running, {{"trainer", share(std::move(trainer)), range_of_ranks(0, 2)},
                      {{"engine", share(std::move(engine)), range_of_ranks(2, 2)}}});
}
const Registration kTied{"sharded_tied_embeddings", tied_embeddings};

}  // namespace
}  // namespace sparsecast::mpi_test
