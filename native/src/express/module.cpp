// What Python's own ways of reading and writing tensors leave to native code.
#include <nanobind/nanobind.h>

#include "model.h"
#include "tensors_module.h"

NB_MODULE(_express, m) {
  using namespace astrarium::express;
  m.attr("ALIGNMENT") = kAlignment;
  bind_tensors(m);
}
