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

  std::vector<Action> decide(Time now, const Happenings& happenings) override {
    const nanobind::gil_scoped_acquire lock;
    try {
      return read((*decide_)(now, as_list(happenings)));
    } catch (const nanobind::python_error& error) {
      const nanobind::str words(error.value());
      const char* const text = words.c_str();
      if (text == nullptr) PyErr_Clear();  // it is no text that others could read
      throw std::runtime_error(text == nullptr ? "it cannot be said how" : text);
    }
  }

 private:
  // As in server/control/python_policy.py, after the kinds of events.
  static constexpr int kArrived = std::variant_size_v<Event>;

  // [(kind, what its class is made of)], in the order in which all of it happened.
  static nanobind::list as_list(const Happenings& happenings) {
    namespace nb = nanobind;
    nb::list listed;
    std::size_t arrived = 0;
    const auto arrive_until = [&](std::size_t count) {
      for (; arrived < count; ++arrived)
        listed.append(nb::make_tuple(kArrived, as_tuple(happenings.arrivals[arrived])));
    };
    for (std::size_t i = 0; i < happenings.events.size(); ++i) {
      arrive_until(happenings.arrived_before[i]);
      const Event& event = happenings.events[i];
      listed.append(nb::make_tuple(static_cast<int>(event.index()),
                                   std::visit([](const auto& event) { return as_tuple(event); }, event)));
    }
    arrive_until(happenings.arrivals.size());
    return listed;
  }

  static nanobind::tuple as_tuple(const Arrival& arrival) {
    return nanobind::make_tuple(arrival.id, arrival.model, arrival.arrival, arrival.deadline, arrival.application,
                                arrival.length, arrival.bucket);
  }
  static nanobind::tuple as_tuple(const BatchFinished& event) {
    return nanobind::make_tuple(event.gpu, event.run, event.started, event.stopped);
  }
  static nanobind::tuple as_tuple(const BatchPreempted& event) {
    return nanobind::make_tuple(event.gpu, event.run, event.started, event.stopped);
  }
  static nanobind::tuple as_tuple(const RequestProfiled& event) {
    return nanobind::make_tuple(event.request, event.model, event.application, event.alone);
  }
  static nanobind::tuple as_tuple(const BatchFailed& event) {
    return nanobind::make_tuple(event.gpu, event.run, event.error);
  }
  static nanobind::tuple as_tuple(const GpuJoined& event) { return nanobind::make_tuple(event.gpu); }
  static nanobind::tuple as_tuple(const GpuLeft& event) { return nanobind::make_tuple(event.gpu); }

  // ([(0, GPU, requests, start) | (1, request, reason, 0) | (2, GPU, run, 0)], when to be asked again at the latest).
  std::vector<Action> read(nanobind::object answer) {
    namespace nb = nanobind;
    std::vector<Action> actions;
    for (nb::handle action : answer[0]) actions.push_back(read_action(action));
    actions.push_back(SetTimer{nb::cast<Time>(answer[1])});
    return actions;
  }

  Action read_action(nanobind::handle action) {
    namespace nb = nanobind;
    const int kind = nb::cast<int>(action[0]);
    if (kind == 1) return drop(nb::cast<std::int64_t>(action[1]), nb::cast<std::string>(action[2]));
    const int gpu = nb::cast<int>(action[1]);
    if (gpu < 0 || gpu >= gpus_) throw std::invalid_argument("there is no GPU " + std::to_string(gpu));
    if (kind == 2) return Preempt{gpu, nb::cast<std::int64_t>(action[2])};
    return Dispatch{gpu, nb::cast<std::vector<std::int64_t>>(action[2]), nb::cast<Time>(action[3]), runs_++};
  }

  static Drop drop(std::int64_t request, std::string reason) {
    const Reason known = reason == "expired"      ? kExpired
                         : reason == "sacrificed" ? kSacrificed
                         : reason == "unserved"   ? kUnserved
                                                  : kNone;
    return {request, known, known == kNone ? std::move(reason) : std::string()};
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
