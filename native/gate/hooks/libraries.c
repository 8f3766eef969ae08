/* Kernels of libraries: their handles belong to no context, and are remembered for that. */
#include "hooks/hooks.h"
#include "kernels/kernels.h"

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    CUresult result = driver()->library_kernel(kernel, library, name);
    if (result == CUDA_SUCCESS) kernel_is_context_free(*kernel);
    return result;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
    CUresult result = driver()->library_kernels(kernels, count, library);
    for (unsigned index = 0; result == CUDA_SUCCESS && index < count; index++) kernel_is_context_free(kernels[index]);
    return result;
}
