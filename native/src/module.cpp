// The one extension module: arrays in, a finished run out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "simulate.h"
#include "window.h"

namespace nb = nanobind;

namespace astrarium {
namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object column(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

std::unique_ptr<Policy> make_policy(const Setup& setup, const Parameters& p) {
  if (p.policy == "deferred") return make_window(setup, Opens::kDeferred, p);
  if (p.policy == "eager") return make_window(setup, Opens::kEager, p);
  if (p.policy == "timeout") return make_window(setup, Opens::kTimeout, p);
  throw std::invalid_argument("no native twin of policy " + p.policy);
}

nb::dict record(Books&& books, Time end) {
  nb::dict out;  // columns are moved out of the books: nothing is copied
  out["outcome"] = column(std::move(books.requests.outcome));
  out["reason"] = column(std::move(books.requests.reason));
  out["done"] = column(std::move(books.requests.done));
  out["batch"] = column(std::move(books.requests.batch));
  out["batch_model"] = column(std::move(books.batches.model));
  out["batch_gpu"] = column(std::move(books.batches.gpu));
  out["batch_size"] = column(std::move(books.batches.size));
  out["batch_dispatched"] = column(std::move(books.batches.dispatched));
  out["batch_started"] = column(std::move(books.batches.started));
  out["batch_finished"] = column(std::move(books.batches.finished));
  out["batch_fate"] = column(std::move(books.batches.fate));
  out["end"] = end;
  out["hopeless"] = books.hopeless();
  out["bad"] = column(std::vector<std::int64_t>(books.bad()));
  return out;
}

nb::dict simulate_serving(const Setup& setup, const Truth& truth, const Parameters& parameters,
                          Column<Time> time, Column<Time> deadline, Column<std::int32_t> model,
                          Column<Time> work, Time warmup, std::vector<std::int64_t> bad_limits) {
  const Arrivals arrivals{time.data(), deadline.data(), model.data(), work.data(),
                          static_cast<std::int64_t>(time.size())};
  auto books = std::make_unique<Books>(setup, arrivals, truth);
  Time end = 0;
  {
    nb::gil_scoped_release release;
    books->watch(warmup, std::move(bad_limits));
    const auto policy = make_policy(setup, parameters);
    end = simulate(*policy, *books, arrivals);
  }
  return record(std::move(*books), end);
}

std::vector<std::string> reasons() { return {"", "expired", "sacrificed", "rejected", "unserved"}; }

}  // namespace
}  // namespace astrarium

NB_MODULE(_native, m) {
  using namespace astrarium;
  nb::class_<Model>(m, "Model").def(nb::init<Time, std::vector<Time>>());
  nb::class_<Network>(m, "Network").def(nb::init<Time, Time, Time>());
  nb::class_<Setup>(m, "Setup").def(nb::init<std::vector<Model>, int, Network, Time>());
  nb::class_<Truth>(m, "Truth")
      .def(nb::init<std::vector<int>, std::vector<std::vector<std::vector<Time>>>, std::vector<int>,
                    std::vector<Time>, std::vector<double>>());
  nb::class_<Parameters>(m, "Parameters").def(nb::init<std::string, std::map<std::string, std::int64_t>,
                                                          std::map<std::string, double>,
                                                          std::map<std::string, std::vector<std::int64_t>>>());
  m.def("simulate_serving", &simulate_serving);
  m.def("reasons", &reasons);
}
