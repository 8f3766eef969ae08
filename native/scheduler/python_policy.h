// A policy in Python decides for the native scheduler: what has happened goes to it in one batch, its actions come
// back. Whoever asks has not Python's lock, and takes it here. The other side is
// astrarium.server.control.python_policy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "policies/live_policy.h"

namespace astrarium::front {

// A Python object that threads without Python's lock may copy and drop.
using SharedObject = std::shared_ptr<nanobind::object>;
inline SharedObject shared(nanobind::object object) {
  return {new nanobind::object(std::move(object)), [](nanobind::object* kept) {
            const nanobind::gil_scoped_acquire lock;
            delete kept;
          }};
}

// What Python keeps of a thread that is not its own; made anew for each decision, that took as long as deciding.
class KnownThread {
 public:
  // To be called by a thread before it takes Python's lock.
  static void make_known() {
    if (PyGILState_GetThisThreadState() == nullptr) thread_local const KnownThread known;
  }
  ~KnownThread() {
    if (!Py_IsInitialized()) return;  // Python is leaving, and lets no thread in any more
    PyEval_RestoreThread(state_);
    PyGILState_Release(before_);
  }

 private:
  KnownThread() : before_(PyGILState_Ensure()), state_(PyEval_SaveThread()) {}

  PyGILState_STATE before_;
  PyThreadState* state_;
};

class PythonPolicy final : public Decider {
 public:
  // With Python's lock.
  PythonPolicy(nanobind::object policy, int gpus)
      : decide_(shared(policy.attr("decide"))),
        listens_(nanobind::cast<bool>(policy.attr("listens_to_profiler"))),
        gpus_(gpus) {}

  bool is_python() const override { return true; }
  bool listens_to_profiler() const override { return listens_; }

  // Python's lock.
  std::shared_ptr<void> enter() override {
    KnownThread::make_known();
    return std::make_shared<nanobind::gil_scoped_acquire>();
  }

  std::vector<Decision> decide(Time now, const Heard& heard) override {
    const nanobind::gil_scoped_acquire lock;
    try {
      return read((*decide_)(now, told(heard)));
    } catch (const nanobind::python_error& error) {
      const nanobind::str words(error.value());
      const char* const text = words.c_str();
      if (text == nullptr) PyErr_Clear();  // it is no text that others could read
      throw std::runtime_error(text == nullptr ? "it cannot be said how" : text);
    }
  }

 private:
  // As in python_policy.py, after the kinds of `Happened`.
  static constexpr int kArrived = 6;

  // [(kind, what its class is made of)], in the order in which all of it happened.
  static nanobind::list told(const Heard& heard) {
    namespace nb = nanobind;
    nb::list all;
    std::size_t arrived = 0, failed = 0;
    const auto arrive_until = [&](std::size_t count) {
      for (; arrived < count; ++arrived) all.append(nb::make_tuple(kArrived, told(heard.arrivals[arrived])));
    };
    for (const Event& event : heard.events) {
      arrive_until(static_cast<std::size_t>(event.sequence));
      const bool has_error = event.what == Happened::kBatchFailed;
      all.append(nb::make_tuple(static_cast<int>(event.what),
                                told(event, has_error ? heard.errors[failed++] : std::string())));
    }
    arrive_until(heard.arrivals.size());
    return all;
  }

  static nanobind::tuple told(const Arrival& one) {
    return nanobind::make_tuple(one.id, one.model, one.arrival, one.deadline, one.application);
  }
  static nanobind::tuple told(const Event& one, const std::string& error) {
    namespace nb = nanobind;
    switch (one.what) {
      case Happened::kGpuJoined:
      case Happened::kGpuLeft: return nb::make_tuple(one.gpu);
      case Happened::kBatchFailed: return nb::make_tuple(one.gpu, one.run, error);
      case Happened::kRequestProfiled: return nb::make_tuple(one.stopped, one.gpu, one.run, one.started);
      default: return nb::make_tuple(one.gpu, one.run, one.started, one.stopped);
    }
  }

  // ([(0, GPU, requests, start) | (1, request, reason, 0) | (2, GPU, run, 0)], when to be asked again at the latest).
  std::vector<Decision> read(nanobind::object answer) {
    namespace nb = nanobind;
    std::vector<Decision> decisions;
    for (nb::handle action : answer[0]) decisions.push_back(read_action(action));
    decisions.push_back({Decision::kTimer, 0, nb::cast<Time>(answer[1])});
    return decisions;
  }

  Decision read_action(nanobind::handle action) {
    namespace nb = nanobind;
    const int kind = nb::cast<int>(action[0]);
    if (kind == 1) return drop(nb::cast<std::int64_t>(action[1]), nb::cast<std::string>(action[2]));
    const int gpu = nb::cast<int>(action[1]);
    if (gpu < 0 || gpu >= gpus_) throw std::invalid_argument("there is no GPU " + std::to_string(gpu));
    if (kind == 2) return {Decision::kPreempt, gpu, 0, {}, kNone, nb::cast<std::int64_t>(action[2])};
    return {Decision::kDispatch,
            gpu,
            nb::cast<Time>(action[3]),
            nb::cast<std::vector<std::int64_t>>(action[2]),
            kNone,
            runs_++};
  }

  static Decision drop(std::int64_t request, std::string reason) {
    const Reason known = reason == "expired"      ? kExpired
                         : reason == "sacrificed" ? kSacrificed
                         : reason == "unserved"   ? kUnserved
                                                  : kNone;
    return {Decision::kDrop, 0, 0, {request}, known, -1, known == kNone ? std::move(reason) : std::string()};
  }

  SharedObject decide_;
  bool listens_;
  int gpus_;
  std::int64_t runs_ = 0;
};

// *make* returns a fresh one, or raises.
inline MakeDecider python_policy(nanobind::object make) {
  return [make = shared(std::move(make))](const Setup& setup) -> std::unique_ptr<Decider> {
    const nanobind::gil_scoped_acquire lock;
    return std::make_unique<PythonPolicy>((*make)(), setup.gpus);
  };
}

}  // namespace astrarium::front
