// astrarium._front: network threads, and what they share with whoever decides.
#include <nanobind/nanobind.h>

#include "exchange/bind_exchange.h"
#include "front/grpc/bind_grpc.h"
#include "front/http1/bind_http1.h"

NB_MODULE(_front, m) {
  m.doc() = "The native front of servers: threads that read calls, and what they share with the scheduler.";
  nanobind::set_leak_warnings(false);  // a server holds its threads until the process ends
  astrarium::front::bind_exchange(m);
  astrarium::front::bind_http1(m);
  astrarium::front::bind_grpc(m);
}
