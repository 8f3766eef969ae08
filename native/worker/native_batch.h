// A batch that needs no Python, from its order to its answers, and the models that have such batches.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "worker/order_scan.h"

namespace astrarium::worker {

struct Memory {
  char* data;
  std::size_t size;

  bool holds(protocol::Wide at, protocol::Wide bytes) const {
    return at >= 0 && bytes >= 0 && at + bytes <= static_cast<protocol::Wide>(size);
  }
};

// When a batch ran on the GPU, by the clock of the host.
struct Ran {
  Time began, ended;
};

// The model broke on a batch.
class BatchFailed : public std::runtime_error {
 public:
  explicit BatchFailed(const std::string& why) : std::runtime_error("ModelFailed: " + why.substr(0, 1900)) {}
};

// The GPU cannot be used any more by this process, since this batch was run.
class DeviceLost : public std::runtime_error {
 public:
  explicit DeviceLost(const std::string& why) : std::runtime_error(why.substr(0, 1900)) {}
};

// How a batch waits: orders are taken in meanwhile, and others are launched.
class BatchWait {
 public:
  virtual ~BatchWait() = default;
  virtual Time now() = 0;
  // False where the batch is to be stopped.
  virtual bool until(Time instant) = 0;
  // Until something is ready that is expected at an instant; this is not interrupted.
  virtual void until_ready(Time expected, const std::function<bool()>& ready) = 0;
};

class NativeBatch {
 public:
  virtual ~NativeBatch() = default;

  // Whether the GPU has the batch, or need not be given it.
  virtual bool launched() const { return true; }
  // Gives it to the GPU, which begins it as soon as it can. What goes wrong is reported when it is run.
  virtual void launch(Time) {}
  // How many batches of its model the GPU takes at once, and which model that is.
  virtual std::size_t in_flight() const { return 0; }
  virtual const void* model() const { return nullptr; }

  // Runs it, or waits until it has run; nothing where it was stopped before. *free* is when the batch before left the
  // GPU.
  virtual std::optional<Ran> run(Time free, Time not_before, BatchWait& waiting) = 0;
  virtual void answer() = 0;

  std::string shapes = "\xc0";  // of the answers, as news tell them: nothing where the model's own say it all
};

class NativeModel {
 public:
  virtual ~NativeModel() = default;
  // Nothing where the batch is one for Python, which may have to say what is wrong with it.
  virtual std::unique_ptr<NativeBatch> batch(const Memory& memory, const RunBatch& order) = 0;
};

}  // namespace astrarium::worker
