// A simulated run of a twin, from checked input to full books.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "policies/twins.h"
#include "simulator/columns.h"
#include "simulator/simulate.h"

namespace astrarium {

inline void require(bool fits, const char* message) {
  if (!fits) throw std::invalid_argument(message);
}

inline void check_model(const Model& model) {
  require(model.latency.size() >= 3, "latency must hold batches of 0 and 1 at least, and the end");
  if (!model.lengths) return;
  require(!model.lengths->longest.empty() && model.lengths->longest.size() == model.lengths->latency.size(),
          "lengths: at least one bucket, and a table for each");
  for (const auto& table : model.lengths->latency)
    require(table.size() >= 3, "lengths: tables must hold batches of 0 and 1 at least, and the end");
}

// What the headers take for granted, because the Python side has made it so.
inline void check_setup(const Setup& setup) {
  require(setup.gpus >= 1, "gpus must be at least 1");
  require(!setup.models.empty(), "models must not be empty");
  for (const Model& model : setup.models) check_model(model);
}

inline void check_by_length(const Setup& setup, const std::vector<std::optional<ByLength>>& profiles) {
  require(profiles.size() == setup.models.size(), "by_length: one for each kind and model, or nothing");
  for (std::size_t model = 0; model < profiles.size(); ++model) {
    const auto& lengths = setup.models[model].lengths;
    require(profiles[model].has_value() == lengths.has_value(), "by_length: for the models that have lengths");
    if (!lengths) continue;
    const ByLength& profile = *profiles[model];
    require(!profile.lengths.empty() && profile.lengths.size() == profile.times.size(), "by_length: a row for each");
    for (std::size_t bucket = 0; bucket < lengths->longest.size(); ++bucket)
      require(profile.longest_batch(lengths->longest[bucket]) >= lengths->latency[bucket].size() - 2,
              "by_length: rows as long as the tables of lengths");
  }
}

inline void check_truth(const Setup& setup, const Truth& truth, std::size_t work, std::size_t count) {
  const auto models = setup.models.size(), kinds = truth.tables.size();
  require(truth.kind_of_gpu.size() == static_cast<std::size_t>(setup.gpus), "kind_of_gpu: one for each GPU");
  for (const int kind : truth.kind_of_gpu)
    require(kind >= 0 && static_cast<std::size_t>(kind) < kinds, "kind_of_gpu: must have a table");
  for (const auto& tables : truth.tables) {
    require(tables.size() == models, "tables: one for each kind and model");
    for (std::size_t model = 0; model < models; ++model)
      require(tables[model].size() >= setup.models[model].latency.size(), "tables: as long as latency");
  }
  require(truth.by_length.empty() || truth.by_length.size() == kinds, "by_length: one for each kind");
  for (const auto& of_kind : truth.by_length) check_by_length(setup, of_kind);
  require(truth.dynamic.size() == models && truth.c0.size() == models && truth.c1.size() == models,
          "dynamic, c0 and c1: one for each model");
  const bool is_static = std::count(truth.dynamic.begin(), truth.dynamic.end(), 0) == std::ssize(truth.dynamic);
  require(is_static || work == count, "work must have the same length as time where a model is dynamic");
}

template <class T>
void check_optional(const char* name, const std::optional<Column<T>>& column, std::size_t count) {
  if (column && column->size() != count)
    throw std::invalid_argument(std::string(name) + " must have the same length as time");
}

// Policies look buckets up, and the truth lengths, where a model has any.
inline void check_lengths(const Setup& setup, const Arrivals& arrivals) {
  for (std::int64_t i = 0; i < arrivals.count; ++i) {
    const auto& lengths = setup.models[static_cast<std::size_t>(arrivals.model[i])].lengths;
    if (!lengths) continue;
    require(static_cast<bool>(arrivals.length) && static_cast<bool>(arrivals.bucket),
            "length and bucket must be given: a model has lengths");
    require(arrivals.bucket[i] == lengths->bucket_of(arrivals.length[i]), "bucket must be that of the length");
  }
}

inline void check_columns(const Setup& setup, const RequestColumns& columns) {
  const std::size_t count = columns.time.size();
  if (columns.deadline.size() != count || columns.model.size() != count)
    throw std::invalid_argument("time, deadline and model must have the same length");
  check_arrivals(setup, columns.arrivals());
  check_optional("application", columns.application, count);
  check_optional("profiled", columns.profiled, count);
  check_optional("length", columns.length, count);
  check_optional("bucket", columns.bucket, count);
  check_lengths(setup, columns.arrivals());
}

// A policy that listens may read the application of every request and the work of profiled ones.
inline void listen(const Setup& setup, const Truth& truth, const Arrivals& arrivals, Books& books, Time delay) {
  require(arrivals.count == 0 || (arrivals.application && arrivals.profiled),
          "application and profiled must be given: the policy listens to the profiler");
  for (std::int64_t i = 0; i < arrivals.count; ++i) {
    const auto model = static_cast<std::size_t>(arrivals.model[i]);
    const auto& known = setup.models[model].dynamic;
    const std::size_t applications = known ? known->history.size() : 1;
    const auto application = static_cast<std::size_t>(arrivals.application[i]);
    require(application < applications, "application must be one of the model's");
    require(!arrivals.profiled[i] || truth.dynamic[model], "profiled requests must be of dynamic models");
  }
  books.run_profiler(delay);
}

// What else a run is to do.
struct RunOptions {
  Time warmup = 0;
  std::vector<std::int64_t> bad_limits = {};  // by model; once one is exceeded the run is lost
  Time profiler_delay = 0;
  std::function<void(Time)> tick = [](Time) {};
  std::function<std::unique_ptr<Policy>(std::unique_ptr<Policy>)> around = {};  // another policy around the twin
};

// Without the interpreter's lock, so *options*, which may hold Python's objects, stay the caller's. What *arrivals*
// point to must stay as it is while the books are read.
inline std::unique_ptr<Books> run(const Setup& setup, const Truth& truth, const Parameters& parameters,
                                  const Arrivals& arrivals, const RunOptions& options) {
  auto books = std::make_unique<Books>(setup, arrivals, truth);
  books->watch(options.warmup, options.bad_limits);
  auto policy = make_policy(setup, parameters);
  if (policy->listens_to_profiler()) listen(setup, truth, arrivals, *books, options.profiler_delay);
  if (options.around) policy = options.around(std::move(policy));
  simulate(*policy, *books, arrivals, options.tick);
  return books;
}

}  // namespace astrarium
