// What Python sees of the gate, bound in a file each.
#pragma once

#include <nanobind/nanobind.h>

void bind_policies(nanobind::module_ &m);
void bind_learning(nanobind::module_ &m);
void bind_simulation(nanobind::module_ &m);
void bind_board(nanobind::module_ &m);
