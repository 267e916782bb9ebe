// sparsecast_perf: one publisher (rank 0), many receivers, real weights; a row a step, in the manner of nccl-tests.
// Correctness does not rest on our own digest: after each sync the same weights travel once more by a dense MPI_Bcast,
// and every receiver compares its live weights with what that brought.

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/count_differing.hpp"
#include "sparsecast/mpi_transport.hpp"
#include "sparsecast_perf/report.hpp"
#include "sparsecast_perf/weight_source.hpp"

namespace sparsecast::perf {
namespace {

constexpr int kPublisher = 0;

/// Broadcast of any length in pieces that fit MPI's int counts.
void broadcast_bytes(std::span<std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::size_t size = std::min(kPiece, bytes.size() - at);
    MPI_Bcast(bytes.data() + at, static_cast<int>(size), MPI_BYTE, kPublisher, MPI_COMM_WORLD);
  }
}

template <class T>
T reduce(T value, MPI_Datatype type, MPI_Op operation) {
  T result{};
  MPI_Allreduce(&value, &result, 1, type, operation, MPI_COMM_WORLD);
  return result;
}
double slowest(double seconds) { return reduce(seconds, MPI_DOUBLE, MPI_MAX); }

/// All weights of one rank in one buffer, so that the dense broadcast is as cheap as it can be.
class Weights {
 public:
  explicit Weights(const TensorTable& table) : table_(table), bytes_(table.bytes()) {}

  std::span<std::byte> all() { return bytes_; }
  std::vector<TensorBytes> tensors() {
    std::vector<TensorBytes> views;
    std::size_t offset = 0;
    for (const TensorSpec& spec : table_) {
      views.push_back(std::span(bytes_).subspan(offset, spec.bytes()));
      offset += spec.bytes();
    }
    return views;
  }
  void copy_from(std::span<const TensorBytes> tensors) {
    std::size_t offset = 0;
    for (const TensorBytes tensor : tensors) {
      if (!tensor.empty()) std::memcpy(bytes_.data() + offset, tensor.data(), tensor.size());
      offset += tensor.size();
    }
  }

 private:
  const TensorTable& table_;
  std::vector<std::byte> bytes_;
};

std::uint64_t count_wrong(const TensorTable& table, std::vector<TensorBytes> found, std::vector<TensorBytes> expected) {
  std::uint64_t wrong = 0;
  for (std::size_t t = 0; t < table.size(); ++t) {
    wrong += bench::count_differing(found[t], expected[t], element_size(table[t].dtype));
  }
  return wrong;
}

std::shared_ptr<const TensorTable> share_table(const WeightSource* source) {
  std::vector<std::byte> bytes;
  if (source != nullptr) bytes = source->table().serialize();
  std::uint64_t size = bytes.size();
  MPI_Bcast(&size, 1, MPI_UINT64_T, kPublisher, MPI_COMM_WORLD);
  bytes.resize(size);
  broadcast_bytes(bytes);
  return std::make_shared<const TensorTable>(TensorTable::parse(bytes));
}

/// True on all ranks while rank 0 has another step.
bool share_step(const std::string& step) {
  int more = step.empty() ? 0 : 1;
  MPI_Bcast(&more, 1, MPI_INT, kPublisher, MPI_COMM_WORLD);
  return more != 0;
}

class Run {
 public:
  Run(const Options& options, int rank, std::unique_ptr<WeightSource> source)
      : options_(options),
        rank_(rank),
        source_(std::move(source)),
        table_(share_table(source_.get())),
        live_(*table_),
        dense_(*table_),
        transport_(make_mpi_transport()),
        timeout_(static_cast<std::int64_t>(options.timeout_seconds * 1000)) {
    if (rank_ == kPublisher) live_.copy_from(source_->weights());
    broadcast_bytes(live_.all());  // The anchor.
    if (rank_ == kPublisher) {
      make_publisher();
    } else {
      SubscriberOptions settings;
      settings.threads = options.encode.threads;
      subscriber_.emplace(table_, live_.tensors(), settings);
    }
  }

  const TensorTable& table() const { return *table_; }
  const WeightSource* source() const { return source_.get(); }

  void warm_up() {
    for (int i = 0; i < options_.warmup; ++i) {
      sync();
      broadcast_bytes(dense_.all());
    }
  }

  /// One step; false when the run is over.
  bool step(Row& row) {
    if (rank_ == kPublisher) row.step = source_->next(!options_.fused);
    if (!share_step(row.step)) return false;
    row.elements = table_->elements();
    row.dense_bytes = table_->bytes();

    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    const SyncReport report = sync();
    MPI_Barrier(MPI_COMM_WORLD);
    row.total = slowest(MPI_Wtime() - begin);
    row.changed = reduce<std::uint64_t>(report.changed, MPI_UINT64_T, MPI_MAX);
    row.wire_bytes = reduce<std::uint64_t>(report.wire_bytes, MPI_UINT64_T, MPI_MAX);
    row.encode = slowest(report.encode_seconds);
    row.wire = slowest(rank_ == kPublisher ? report.wire_seconds : 0);
    row.apply = slowest(report.apply_seconds);

    if (rank_ == kPublisher) dense_.copy_from(source_->weights());
    MPI_Barrier(MPI_COMM_WORLD);
    const double dense_begin = MPI_Wtime();
    broadcast_bytes(dense_.all());
    MPI_Barrier(MPI_COMM_WORLD);
    row.dense = slowest(MPI_Wtime() - dense_begin);

    std::uint64_t wrong = 0;
    if (options_.check && rank_ != kPublisher) wrong = count_wrong(*table_, live_.tensors(), dense_.tensors());
    row.wrong = reduce<std::uint64_t>(wrong, MPI_UINT64_T, MPI_SUM);
    return true;
  }

 private:
  void make_publisher() {
    std::unique_ptr<Detector> detector;
    const std::vector<TensorBytes> weights = source_->weights();
    if (options_.fused) {
      detector = make_fused_cast(*table_, source_->masters(), weights);
    } else {
      detector = make_host_snapshot(*table_, {weights.begin(), weights.end()});
    }
    PublisherOptions settings;
    settings.encode = options_.encode;
    publisher_.emplace(table_, std::move(detector), settings);
  }

  SyncReport sync() {
    if (rank_ == kPublisher) return sync_send(*publisher_, *transport_, timeout_);
    return sync_receive(*subscriber_, *transport_, kPublisher, timeout_);
  }

  const Options& options_;
  int rank_;
  std::unique_ptr<WeightSource> source_;
  std::shared_ptr<const TensorTable> table_;
  Weights live_;   ///< Receivers: the engine's weights, updated in place.
  Weights dense_;  ///< What the dense broadcast brings.
  std::unique_ptr<Transport> transport_;
  std::chrono::milliseconds timeout_;
  std::optional<Publisher> publisher_;
  std::optional<Subscriber> subscriber_;
};

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

int run(const Options& options, int rank, int ranks) {
  std::unique_ptr<WeightSource> source;
  if (rank == kPublisher) {
    source = options.synthetic ? make_synthetic(options.model) : open_checkpoints(options.checkpoints);
  }
  Run benchmark(options, rank, std::move(source));
  Header header;
  if (rank == kPublisher) {
    header = {benchmark.source()->describe(),
              ranks,
              mpi_version(),
              options.fused ? "fused cast" : "host snapshot",
              benchmark.table().size(),
              benchmark.table().elements()};
    print_header(header, options);
  }
  benchmark.warm_up();
  std::vector<Row> rows;
  const std::uint64_t limit = options.steps == 0 && !options.synthetic ? ~std::uint64_t{0} : options.steps;
  for (Row row; rows.size() < limit && benchmark.step(row); row = {}) {
    rows.push_back(row);
    if (rank == kPublisher) print_row(row);
  }
  int good = 1;
  if (rank == kPublisher) {
    good = print_summary(rows) ? 1 : 0;
    if (!options.json.empty()) write_json(options.json, header, options, rows);
  }
  MPI_Bcast(&good, 1, MPI_INT, kPublisher, MPI_COMM_WORLD);
  return good != 0 ? 0 : 1;
}

}  // namespace
}  // namespace sparsecast::perf

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  sparsecast::perf::Options options;
  int exit_code = 0;
  if (!sparsecast::perf::parse_options(argc, argv, rank == 0, options, exit_code)) {
    MPI_Finalize();
    return exit_code;
  }
  if (ranks < 2) {
    fmt::print(stderr, "sparsecast_perf needs at least 2 ranks: a publisher and a receiver. Try mpirun -np 4.\n");
    MPI_Finalize();
    return 2;
  }
  try {
    exit_code = sparsecast::perf::run(options, rank, ranks);
  } catch (const std::exception& error) {
    // The other ranks may be anywhere: end them all rather than let them wait.
    fmt::print(stderr, "rank {}: {}\n", rank, error.what());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  MPI_Finalize();
  return exit_code;
}
