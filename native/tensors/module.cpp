// What Python's own ways of reading and writing tensors, and of running batches, leave to native code.
#include <nanobind/nanobind.h>

#include "tensors/bind_tensors.h"
#include "tensors/model.h"
#include "worker/bind_batch_loop.h"
#include "worker/bind_graph_runner.h"

NB_MODULE(_express, m) {
  using namespace astrarium::protocol;
  nanobind::set_leak_warnings(false);  // a worker holds its loop until the process ends
  m.attr("ALIGNMENT") = kAlignment;
  bind_tensors(m);
  astrarium::worker::bind_graph_runner(m);
  astrarium::worker::bind_batch_loop(m);
}
