// astrarium._tensors: tensors of requests and batches, read, written and gathered faster than Python can.
#include <nanobind/nanobind.h>

#include "tensors/bind_tensors.h"
#include "tensors/model.h"

NB_MODULE(_tensors, m) {
  m.doc() = "Tensors of requests and batches, read, written and gathered faster than Python can.";
  m.attr("ALIGNMENT") = astrarium::protocol::kAlignment;
  astrarium::protocol::bind_tensors(m);
}
