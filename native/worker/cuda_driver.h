// The functions of the CUDA driver that batches need. They are looked up where a model on a GPU is loaded: without one,
// nothing of CUDA has to be there.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace astrarium::worker {

using Handle = void*;  // of a context, a stream, an event or a graph: the same as CUDA's runtime has
using DevicePointer = unsigned long long;

class CudaError : public std::runtime_error {
 public:
  explicit CudaError(const std::string& message, int code = 0) : std::runtime_error(message), code_(code) {}

  // Whether the process cannot use its GPU any more: such an error comes back from every later call of the driver,
  // until the context goes with the process.
  bool is_sticky() const {
    static constexpr int kSticky[] = {
        46,  101, 201, 214, 220, 226,       // GPU gone, no context, uncorrectable memory
        700, 702, 709, 710,                 // illegal address, time-out, destroyed, assert
        714, 715, 716, 717, 718, 719, 721,  // broken stack, instruction, alignment, launch
        999,
    };
    return std::find(std::begin(kSticky), std::end(kSticky), code_) != std::end(kSticky);
  }

 private:
  int code_;
};

class CudaDriver {
 public:
  explicit CudaDriver(const std::string& library) : library_(::dlopen(library.c_str(), RTLD_NOW)) {
    if (library_ == nullptr) throw CudaError(std::string("the CUDA driver cannot be loaded: ") + ::dlerror());
    find(get_context_, "cuCtxGetCurrent");
    find(set_context_, "cuCtxSetCurrent");
    find(to_device_, "cuMemcpyHtoDAsync_v2");
    find(to_host_, "cuMemcpyDtoHAsync_v2");
    find(within_, "cuMemcpyDtoDAsync_v2");
    find(fill_, "cuMemsetD8Async");
    find(launch_, "cuGraphLaunch");
    find(synchronize_, "cuStreamSynchronize");
    find(create_, "cuEventCreate");
    find(destroy_, "cuEventDestroy_v2");
    find(record_, "cuEventRecord");
    find(query_, "cuEventQuery");
    find(wait_, "cuEventSynchronize");
    find(elapsed_, "cuEventElapsedTime");
    find(follow_, "cuStreamWaitEvent");
    find(explain_, "cuGetErrorString");
  }
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  Handle context() const {
    Handle current = nullptr;
    check(get_context_(&current), "cuCtxGetCurrent");
    return current;
  }
  void enter(Handle context) const { check(set_context_(context), "cuCtxSetCurrent"); }

  // In the order of a stream.
  void copy_to_device(DevicePointer to, const void* from, std::size_t bytes, Handle stream) const {
    if (bytes) check(to_device_(to, from, bytes, stream), "cuMemcpyHtoDAsync");
  }
  void copy_to_host(void* to, DevicePointer from, std::size_t bytes, Handle stream) const {
    if (bytes) check(to_host_(to, from, bytes, stream), "cuMemcpyDtoHAsync");
  }
  void copy_within(DevicePointer to, DevicePointer from, std::size_t bytes, Handle stream) const {
    if (bytes) check(within_(to, from, bytes, stream), "cuMemcpyDtoDAsync");
  }
  void clear(DevicePointer to, std::size_t bytes, Handle stream) const {
    if (bytes) check(fill_(to, 0, bytes, stream), "cuMemsetD8Async");
  }
  void launch(Handle graph, Handle stream) const { check(launch_(graph, stream), "cuGraphLaunch"); }
  void follow(Handle stream, Handle event) const { check(follow_(stream, event, 0), "cuStreamWaitEvent"); }
  void record(Handle event, Handle stream) const { check(record_(event, stream), "cuEventRecord"); }
  void synchronize(Handle stream) const { check(synchronize_(stream), "cuStreamSynchronize"); }

  Handle new_event(bool timed) const {
    constexpr unsigned kNoTiming = 2;
    Handle event = nullptr;
    check(create_(&event, timed ? 0 : kNoTiming), "cuEventCreate");
    return event;
  }
  void destroy(Handle event) const { destroy_(event); }

  bool happened(Handle event) const {
    constexpr int kNotReady = 600;
    const int result = query_(event);
    if (result != kNotReady) check(result, "cuEventQuery");
    return result != kNotReady;
  }
  void await(Handle event) const { check(wait_(event), "cuEventSynchronize"); }

  // Nanoseconds.
  long long elapsed(Handle first, Handle second) const {
    float milliseconds = 0;
    check(elapsed_(&milliseconds, first, second), "cuEventElapsedTime");
    return static_cast<long long>(static_cast<double>(milliseconds) * 1e6);
  }

 private:
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library_, name));
    if (function == nullptr) throw CudaError(std::string("the CUDA driver has no ") + name);
  }

  void check(int result, const char* what) const {
    if (result == 0) return;
    const char* text = nullptr;
    explain_(result, &text);
    throw CudaError(std::string(what) + ": " + (text != nullptr ? text : "error " + std::to_string(result)), result);
  }

  void* library_;  // never closed: others use it
  int (*get_context_)(Handle*), (*set_context_)(Handle);
  int (*to_device_)(DevicePointer, const void*, std::size_t, Handle);
  int (*to_host_)(void*, DevicePointer, std::size_t, Handle);
  int (*within_)(DevicePointer, DevicePointer, std::size_t, Handle);
  int (*fill_)(DevicePointer, unsigned char, std::size_t, Handle);
  int (*launch_)(Handle, Handle), (*synchronize_)(Handle);
  int (*create_)(Handle*, unsigned), (*destroy_)(Handle), (*record_)(Handle, Handle);
  int (*query_)(Handle), (*wait_)(Handle), (*elapsed_)(float*, Handle, Handle);
  int (*follow_)(Handle, Handle, unsigned);
  int (*explain_)(int, const char**);
};

}  // namespace astrarium::worker
