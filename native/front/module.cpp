// astrarium._front: the network threads and the scheduler, a path of requests without Python.
#include <nanobind/nanobind.h>

#include "exchange/bind_exchange.h"
#include "front/bind_grpc.h"
#include "front/bind_http1.h"
#include "scheduler/bind_scheduler.h"

NB_MODULE(_front, m) {
  nanobind::set_leak_warnings(false);  // a server holds its threads until the process ends
  astrarium::front::bind_exchange(m);
  astrarium::front::bind_http1(m);
  astrarium::front::bind_grpc(m);
  astrarium::front::bind_scheduler(m);
}
