// astrarium._worker: a worker's loop, and models that need no Python to run a batch.
#include <nanobind/nanobind.h>

#include "worker/bind_batch_loop.h"
#include "worker/bind_graph_runner.h"

NB_MODULE(_worker, m) {
  m.doc() = "A worker's loop in native code, and models that need no Python to run a batch.";
  nanobind::set_leak_warnings(false);  // a worker holds its loop until the process ends
  astrarium::worker::bind_graph_runner(m);
  astrarium::worker::bind_batch_loop(m);
}
