// The gate's policies, what they learn, their simulation, and the board, for Python.
#include "bindings/bindings.h"

NB_MODULE(_gate, m) {
    m.doc() = "The kernel gate's policies, what they learn, their simulation, and the board that clients share.";
    bind_policies(m);
    bind_learning(m);
    bind_simulation(m);
    bind_board(m);
}
