#include "log/delta_source.hpp"

#include "sync/encoder.hpp"

namespace sparsecast {

DeltaSource::DeltaSource(const DeltaFile& file) : header_(file.header()), result_(file.commit()), file_(&file) {
  // The records of a delta file lie one after the other: header and table are what comes before the first of the rest.
  const ConstBytes after_table = file.frames() > 0 ? file.frame(0) : file.commit_record();
  const std::byte* begin = file.header_record().data();
  pieces_.emplace_back(begin, static_cast<std::size_t>(after_table.data() - begin));
  for (std::size_t i = 0; i < file.frames(); ++i) pieces_.push_back(file.frame(i));
  pieces_.push_back(file.commit_record());
}

DeltaSource::DeltaSource(const Delta& delta, const TensorTable& table) : header_(delta.info), result_(delta.result) {
  owned_.push_back(pack_table(table, delta.info.delta_id));
  pieces_.emplace_back(delta.header);
  pieces_.emplace_back(owned_.front());
  for (const Bytes& frame : delta.frames) pieces_.emplace_back(frame);
  pieces_.emplace_back(delta.commit);
}

DeltaSource DeltaSource::unchanged(const StreamId& stream, const TensorTable& table, std::uint64_t base_version,
                                   const StateDigest& digest) {
  DeltaSource source;
  source.header_ = make_header(table, EncodeOptions{}, stream, base_version, base_version + 1, digest);
  source.owned_.push_back(pack_header(source.header_));
  source.owned_.push_back(pack_table(table, source.header_.delta_id));
  source.result_.delta_id = source.header_.delta_id;
  source.result_.version = base_version + 1;
  source.result_.result_digest = digest;
  source.result_.frames_hash = xxh3_64({});
  source.owned_.push_back(pack_commit(source.result_));
  for (const Bytes& record : source.owned_) source.pieces_.emplace_back(record);
  return source;
}

std::uint64_t DeltaSource::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const ConstBytes piece : pieces_) total += piece.size();
  return total;
}

ContentHash DeltaSource::hash() const {
  ContentHasher hasher;
  for_each([&](ConstBytes piece) { hasher.append(piece); });
  return hasher.finish();
}

void DeltaSource::for_each(const std::function<void(ConstBytes piece)>& take) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    take(pieces_[i]);
    if (file_ != nullptr && i > 0 && i <= file_->frames()) file_->release_frame(i - 1);
  }
}

}  // namespace sparsecast
