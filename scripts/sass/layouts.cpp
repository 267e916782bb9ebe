// SPDX-License-Identifier: Apache-2.0

// Prints, as JSON, where the fields of the kernels' parameters and tables are: {struct: {"": size, field: offset}}.

#include <cstddef>
#include <cstdio>

#include "cuda/apply/received.hpp"
#include "cuda/common/pipeline.hpp"
#include "cuda/encode/context_tables.hpp"

using namespace sparsecast::cuda;
using sparsecast::StridedView;

#define BEGIN(type) std::printf("\"%s\": {", #type)
#define FIELD(type, name) std::printf("\"%s\": %zu, ", #name, offsetof(type, name))
#define END(type) std::printf("\"\": %zu}", sizeof(type))
#define COMMA() std::printf(",\n")

int main() {
  std::printf("{");
  BEGIN(TensorEntry);
  FIELD(TensorEntry, current), FIELD(TensorEntry, old), FIELD(TensorEntry, refresh), FIELD(TensorEntry, elements);
  FIELD(TensorEntry, key_lo), FIELD(TensorEntry, key_hi), FIELD(TensorEntry, digest_view);
  FIELD(TensorEntry, current_view), FIELD(TensorEntry, old_view), FIELD(TensorEntry, sections);
  FIELD(TensorEntry, element_shift), FIELD(TensorEntry, order), FIELD(TensorEntry, vectors), FIELD(TensorEntry, lead);
  FIELD(TensorEntry, dtype);
  END(TensorEntry), COMMA();
  BEGIN(TileEntry), FIELD(TileEntry, current), FIELD(TileEntry, old), FIELD(TileEntry, tensor);
  FIELD(TileEntry, number), FIELD(TileEntry, current_view), FIELD(TileEntry, old_view), FIELD(TileEntry, count);
  FIELD(TileEntry, element_shift), FIELD(TileEntry, masters), FIELD(TileEntry, vectors), FIELD(TileEntry, lead);
  END(TileEntry), COMMA();
  BEGIN(StridedView), FIELD(StridedView, extents), FIELD(StridedView, strides), FIELD(StridedView, rank);
  END(StridedView), COMMA();
  BEGIN(Pipeline);
  FIELD(Pipeline, tensors), FIELD(Pipeline, sections), FIELD(Pipeline, tiles), FIELD(Pipeline, views);
  FIELD(Pipeline, tile_counts);
  FIELD(Pipeline, tile_offsets), FIELD(Pipeline, tile_entries), FIELD(Pipeline, entry_positions);
  FIELD(Pipeline, entry_words), FIELD(Pipeline, entry_word_bytes), FIELD(Pipeline, entry_capacity), FIELD(Pipeline, runs), FIELD(Pipeline, items), FIELD(Pipeline, records), FIELD(Pipeline, section_blocks);
  FIELD(Pipeline, scratch), FIELD(Pipeline, scratch_stride), FIELD(Pipeline, arena), FIELD(Pipeline, arena_bytes);
  FIELD(Pipeline, control), FIELD(Pipeline, counts), FIELD(Pipeline, stream_sums), FIELD(Pipeline, section_count);
  FIELD(Pipeline, stream_count), FIELD(Pipeline, positions), FIELD(Pipeline, values), FIELD(Pipeline, refresh);
  END(Pipeline), COMMA();
  BEGIN(Chunk), FIELD(Chunk, section_end), FIELD(Chunk, tile_end), FIELD(Chunk, worst_bytes), END(Chunk), COMMA();
  BEGIN(BlockRecord), FIELD(BlockRecord, first_tile), FIELD(BlockRecord, extent), FIELD(BlockRecord, payload_bytes);
  FIELD(BlockRecord, coding), FIELD(BlockRecord, payload), END(BlockRecord), COMMA();
  BEGIN(ContextTables), FIELD(ContextTables, blocks), FIELD(ContextTables, items), FIELD(ContextTables, section_blocks);
  FIELD(ContextTables, item_count), FIELD(ContextTables, chosen), FIELD(ContextTables, chosen_blocks);
  END(ContextTables), COMMA();
  BEGIN(ContextBlock), FIELD(ContextBlock, record), FIELD(ContextBlock, first), FIELD(ContextBlock, blocks);
  END(ContextBlock), COMMA();
  BEGIN(Control), FIELD(Control, chunks), END(Control), COMMA();
  BEGIN(ChunkCounts), FIELD(ChunkCounts, runs), FIELD(ChunkCounts, items), FIELD(ChunkCounts, started);
  END(ChunkCounts), COMMA();
  BEGIN(LiveTensor);
  FIELD(LiveTensor, data), FIELD(LiveTensor, elements), FIELD(LiveTensor, key_lo), FIELD(LiveTensor, key_hi);
  FIELD(LiveTensor, element_shift), FIELD(LiveTensor, order), FIELD(LiveTensor, dtype), FIELD(LiveTensor, view);
  FIELD(LiveTensor, digest_view), END(LiveTensor), COMMA();
  BEGIN(ReceivedBlock);
  FIELD(ReceivedBlock, payload), FIELD(ReceivedBlock, first_change), FIELD(ReceivedBlock, payload_words), FIELD(ReceivedBlock, first_tile);
  FIELD(ReceivedBlock, span), FIELD(ReceivedBlock, changed), FIELD(ReceivedBlock, coding);
  FIELD(ReceivedBlock, element_shift), FIELD(ReceivedBlock, for_cta), END(ReceivedBlock), COMMA();
  BEGIN(ReceiveControl), FIELD(ReceiveControl, cta_blocks), END(ReceiveControl), COMMA();
  BEGIN(Received);
  FIELD(Received, tensors), FIELD(Received, views), FIELD(Received, streams), FIELD(Received, blocks), FIELD(Received, cta_blocks), FIELD(Received, frame_undo);
  FIELD(Received, changes), FIELD(Received, undo), FIELD(Received, digest_changes), FIELD(Received, entry_positions), FIELD(Received, entry_words);
  FIELD(Received, control), FIELD(Received, frame_count), FIELD(Received, block_count);
  FIELD(Received, entry_word_bytes), END(Received);
  std::printf("}\n");
}
