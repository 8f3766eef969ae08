#include "admission/launch.h"

#include "kernels/measure.h"
#include "kernels/recording.h"

enum { LEARN_FROM = 4, LEARN_AGAIN = 1024 }; /* launches */

void launch_look_up(launch *made) {
    if (made->sort == LAUNCH_GRAPH) made->kernel = kernel_of_graph((CUgraphExec)made->arguments);
    if (made->sort == LAUNCH_KERNEL) made->kernel = kernel_of(made->function, &made->shape);
    if (!made->kernel) return;
    made->work = made->kernel->work;
    made->kernel->launches++;
    recording_launched(made->kernel);
}

static int worth_measuring(const launch *made, gate_class kind) {
    const kernel *known = made->kernel;
    if (!known || (made->sort == LAUNCH_GRAPH && kind == GATE_LATENCY)) return 0;
    if (recording_is_on()) return 1;
    return !known->work.duration ? known->sampled < LEARN_FROM : known->launches % LEARN_AGAIN == 0;
}

CUresult launch_submit(const launch *made, gate_class kind) {
    if (!worth_measuring(made, kind)) return made->submit(made, made->stream);
    measure_harvest();
    int number = measure_begin(made->kernel, made->stream);
    CUresult result = made->submit(made, made->stream);
    measure_end(number, made->stream);
    return result;
}
