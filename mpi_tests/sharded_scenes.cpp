// SPDX-License-Identifier: Apache-2.0
#include "sharded_scenes.hpp"

namespace sparsecast::mpi_test {
namespace {

/// A decoder layer's tensors: 8 query heads, 2 KV heads of 16.
constexpr std::uint64_t kHidden = 96;
constexpr std::uint64_t kHead = 16;
constexpr std::uint64_t kQuery = 8;
constexpr std::uint64_t kKeyValue = 2;
constexpr std::uint64_t kInner = 160;

std::string in_layer(std::uint32_t layer, const std::string& name) {
  return fmt::format("model.layers.{}.{}.weight", layer, name);
}

void add_dense_layer(LayoutBuilder& builder, std::uint32_t layer) {
  const auto tensor = [&](const std::string& name, std::vector<std::uint64_t> shape, DType dtype = DType::kBF16) {
    builder.tensor({in_layer(layer, name), dtype, std::move(shape)});
  };
  tensor("input_layernorm", {kHidden}, DType::kF32);
  tensor("self_attn.q_proj", {kQuery * kHead, kHidden});
  tensor("self_attn.k_proj", {kKeyValue * kHead, kHidden});
  tensor("self_attn.v_proj", {kKeyValue * kHead, kHidden});
  tensor("self_attn.o_proj", {kHidden, kQuery * kHead});
  tensor("mlp.gate_proj", {kInner, kHidden});
  tensor("mlp.up_proj", {kInner, kHidden});
  tensor("mlp.down_proj", {kHidden, kInner});
}

constexpr const char* kDenseNames[] = {"input_layernorm",  "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                       "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

void add_outer(LayoutBuilder& builder, std::uint64_t vocabulary) {
  builder.tensor({"model.embed_tokens.weight", DType::kBF16, {vocabulary, kHidden}});
  builder.tensor({"lm_head.weight", DType::kBF16, {vocabulary, kHidden}});
}

/// SGLang's and vLLM's cut of a dense model over axis tp.
void cut_for_engine(LayoutBuilder& builder, std::uint32_t layers) {
  builder.add("embed_tokens", {"model.embed_tokens.weight"}, Cut::vocab_parallel({"tp"}, 64));
  builder.add("lm_head", {"lm_head.weight"}, Cut::vocab_parallel({"tp"}, 64));
  for (std::uint32_t l = 0; l < layers; ++l) {
    const auto name = [&](const char* tensor) { return in_layer(l, tensor); };
    builder.add(name("norm"), {name("input_layernorm")}, Cut::replicate());
    builder.add(name("qkv_proj"), {name("self_attn.q_proj"), name("self_attn.k_proj"), name("self_attn.v_proj")},
                Cut::qkv_proj({"tp"}, kQuery, kKeyValue));
    builder.add(name("o_proj"), {name("self_attn.o_proj")}, Cut::row_parallel({"tp"}));
    builder.add(name("gate_up_proj"), {name("mlp.gate_proj"), name("mlp.up_proj")}, Cut::gate_up({"tp"}));
    builder.add(name("down_proj"), {name("mlp.down_proj")}, Cut::row_parallel({"tp"}));
  }
}

}  // namespace

std::shared_ptr<const Layout> dense_engine(std::uint32_t tp, std::uint32_t layers, std::uint64_t vocabulary) {
  LayoutBuilder builder({Mesh{{"tp", tp}}});
  add_outer(builder, vocabulary);
  for (std::uint32_t l = 0; l < layers; ++l) add_dense_layer(builder, l);
  cut_for_engine(builder, layers);
  return share(std::move(builder));
}

std::shared_ptr<const Layout> dense_fsdp(std::uint32_t ranks, std::uint32_t layers, std::uint64_t vocabulary) {
  LayoutBuilder builder({Mesh{{"dp", ranks}}});
  add_outer(builder, vocabulary);
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    builder.add(name, {name}, Cut::fsdp2({"dp"}));
  }
  for (std::uint32_t l = 0; l < layers; ++l) {
    add_dense_layer(builder, l);
    for (const char* name : kDenseNames) builder.add(in_layer(l, name), {in_layer(l, name)}, Cut::fsdp2({"dp"}));
  }
  return share(std::move(builder));
}

/// Megatron's: a stage a layer, the embedding on the first, the head on the last.
std::shared_ptr<const Layout> dense_megatron(std::uint32_t tp, std::uint32_t pp, std::uint64_t vocabulary) {
  LayoutBuilder builder({Mesh{{"pp", pp}, {"tp", tp}}});
  add_outer(builder, vocabulary);
  builder.add("embedding", {"model.embed_tokens.weight"}, Cut::vocab_parallel({"tp"}, 32 * tp), {{"pp", {0}}});
  builder.add("output_layer", {"lm_head.weight"}, Cut::vocab_parallel({"tp"}, 32 * tp), {{"pp", {pp - 1}}});
  for (std::uint32_t l = 0; l < pp; ++l) {
    add_dense_layer(builder, l);
    const Where here = {{"pp", {l}}};
    const auto name = [&](const char* tensor) { return in_layer(l, tensor); };
    builder.add(name("norm"), {name("input_layernorm")}, Cut::replicate(), here);
    builder.add(name("linear_qkv"), {name("self_attn.q_proj"), name("self_attn.k_proj"), name("self_attn.v_proj")},
                Cut::linear_qkv({"tp"}, kQuery, kKeyValue), here);
    builder.add(name("linear_proj"), {name("self_attn.o_proj")}, Cut::row_parallel({"tp"}), here);
    builder.add(name("linear_fc1"), {name("mlp.gate_proj"), name("mlp.up_proj")}, Cut::gate_up({"tp"}), here);
    builder.add(name("linear_fc2"), {name("mlp.down_proj")}, Cut::row_parallel({"tp"}), here);
  }
  return share(std::move(builder));
}

namespace {

std::string in_experts(std::uint32_t layer, const std::string& expert, const char* name) {
  return fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, name);
}

constexpr std::uint64_t kExpertInner = 48;

void add_expert_layer(LayoutBuilder& builder, std::uint32_t layer) {
  builder.tensor({in_layer(layer, "input_layernorm"), DType::kBF16, {kHidden}});
  for (std::uint32_t e = 0; e < kSceneExperts; ++e) {
    const std::string expert = fmt::format("{}", e);
    builder.tensor({in_experts(layer, expert, "gate_proj"), DType::kBF16, {kExpertInner, kHidden}});
    builder.tensor({in_experts(layer, expert, "up_proj"), DType::kBF16, {kExpertInner, kHidden}});
    builder.tensor({in_experts(layer, expert, "down_proj"), DType::kBF16, {kHidden, kExpertInner}});
  }
}

void cut_expert_layer(LayoutBuilder& builder, std::uint32_t layer, const Experts& experts, const Where& where) {
  const auto name = [&](const char* tensor) { return in_experts(layer, "{expert}", tensor); };
  const std::string place = experts.stacked ? "" : ".{expert}";
  builder.add(in_layer(layer, "norm"), {in_layer(layer, "input_layernorm")}, Cut::replicate(), where);
  builder.add_experts(in_layer(layer, "w13" + place), {name("gate_proj"), name("up_proj")}, Cut::gate_up({}), experts,
                      where);
  builder.add_experts(in_layer(layer, "w2" + place), {name("down_proj")}, Cut::row_parallel({}), experts, where);
}

}  // namespace

std::shared_ptr<const Layout> experts_megatron(std::uint32_t ep) {
  LayoutBuilder builder({Mesh{{"pp", 2}, {"ep", ep}}});
  for (std::uint32_t l = 0; l < 2; ++l) {
    add_expert_layer(builder, l);
    cut_expert_layer(builder, l, Experts::in_order({"ep"}, kSceneExperts), {{"pp", {l}}});
  }
  return share(std::move(builder));
}

std::shared_ptr<const Layout> experts_engine(std::uint32_t ep, const std::vector<std::uint32_t>& places) {
  LayoutBuilder builder({Mesh{{"ep", ep}}});
  for (std::uint32_t l = 0; l < 2; ++l) {
    add_expert_layer(builder, l);
    cut_expert_layer(builder, l, {{"ep"}, places, false, false}, {});
  }
  return share(std::move(builder));
}

std::vector<std::uint32_t> experts_in_order() {
  std::vector<std::uint32_t> places(kSceneExperts);
  std::iota(places.begin(), places.end(), 0U);
  return places;
}

}  // namespace sparsecast::mpi_test
