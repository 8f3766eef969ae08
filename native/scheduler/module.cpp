// astrarium._scheduler: the thread that asks a policy and sends batches to workers.
#include <nanobind/nanobind.h>

#include "scheduler/bind_scheduler.h"

NB_MODULE(_scheduler, m) {
  m.doc() = "The thread that asks a policy and sends batches to workers.";
  nanobind::set_leak_warnings(false);              // a server holds its threads until the process ends
  nanobind::module_::import_("astrarium._front");  // whose exchange a scheduler takes
  astrarium::front::bind_scheduler(m);
}
