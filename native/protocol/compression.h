// zlib, as far as compressed bodies and answers need it. The library is loaded when the server starts, so that neither
// its headers nor the library itself have to be there: without it such requests go the long way.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "protocol/http_head.h"

namespace astrarium::protocol {

// z_stream of zlib 1, whose layout has been the same since 1995.
struct ZStream {
  const unsigned char* next_in = nullptr;
  unsigned available_in = 0;
  unsigned long total_in = 0;
  unsigned char* next_out = nullptr;
  unsigned available_out = 0;
  unsigned long total_out = 0;
  const char* message = nullptr;
  void* state = nullptr;
  void* allocate = nullptr;
  void* free = nullptr;
  void* opaque = nullptr;
  int data_type = 0;
  unsigned long check = 0, reserved = 0;
};

class Zlib {
 public:
  static const Zlib& library() {
    static const Zlib loaded;
    return loaded;
  }

  explicit operator bool() const { return whole_; }

  static constexpr int kOk = 0, kStreamEnd = 1, kFinish = 4, kDeflated = 8, kMemory = 8;
  static constexpr const char* kVersion = "1";  // only the first digit counts

  int (*inflate_init)(ZStream*, int, const char*, int) = nullptr;
  int (*inflate)(ZStream*, int) = nullptr;
  int (*inflate_reset)(ZStream*) = nullptr;
  int (*inflate_end)(ZStream*) = nullptr;
  int (*deflate_init)(ZStream*, int, int, int, int, int, const char*, int) = nullptr;
  int (*deflate)(ZStream*, int) = nullptr;
  int (*deflate_reset)(ZStream*) = nullptr;
  int (*deflate_end)(ZStream*) = nullptr;
  unsigned long (*deflate_bound)(ZStream*, unsigned long) = nullptr;

 private:
  Zlib() {
    void* library = ::dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    whole_ = find(library, "inflateInit2_", inflate_init) && find(library, "inflate", inflate) &&
             find(library, "inflateReset", inflate_reset) && find(library, "inflateEnd", inflate_end) &&
             find(library, "deflateInit2_", deflate_init) && find(library, "deflate", deflate) &&
             find(library, "deflateReset", deflate_reset) && find(library, "deflateEnd", deflate_end) &&
             find(library, "deflateBound", deflate_bound);
  }

  template <class Function>
  static bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
  }

  bool whole_ = false;
};

// Makes bodies of compressed ones.
class Inflater {
 public:
  Inflater() {
    ready_ = zlib_ && zlib_.inflate_init(&stream_, kAnyWrapping, Zlib::kVersion, sizeof stream_) == Zlib::kOk;
  }
  ~Inflater() {
    if (ready_) zlib_.inflate_end(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // False where this is not exactly one stream, or one of more than *most* bytes: the long way says which.
  bool inflate(std::string_view packed, std::size_t most, std::string& out) {
    if (!ready_ || zlib_.inflate_reset(&stream_) != Zlib::kOk) return false;
    stream_.next_in = reinterpret_cast<const unsigned char*>(packed.data());
    stream_.available_in = static_cast<unsigned>(packed.size());
    out.resize(std::min(std::max(out.capacity(), 4 * packed.size()), most));
    for (std::size_t size = 0;;) {
      stream_.next_out = reinterpret_cast<unsigned char*>(out.data()) + size;
      stream_.available_out = static_cast<unsigned>(out.size() - size);
      const int result = zlib_.inflate(&stream_, 0);
      size = out.size() - stream_.available_out;
      if (result == Zlib::kStreamEnd) {
        out.resize(size);
        return stream_.available_in == 0;
      }
      if (result != Zlib::kOk || stream_.available_out != 0 || out.size() == most) return false;
      out.resize(std::min(2 * out.size(), most));
    }
  }

 private:
  static constexpr int kAnyWrapping = 32 + 15;  // it finds out by itself whether it reads gzip or deflate

  const Zlib& zlib_ = Zlib::library();
  ZStream stream_;
  bool ready_ = false;
};

// Makes compressed answers of one coding, as fast as it can.
class Deflater {
 public:
  explicit Deflater(Coding coding) {
    constexpr int kFastest = 1, kWindow = 15;
    const int wrapping = coding == Coding::kGzip ? 16 + kWindow : kWindow;
    ready_ = zlib_ && zlib_.deflate_init(&stream_, kFastest, Zlib::kDeflated, wrapping, Zlib::kMemory, 0,
                                         Zlib::kVersion, sizeof stream_) == Zlib::kOk;
  }
  ~Deflater() {
    if (ready_) zlib_.deflate_end(&stream_);
  }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;

  // Takes the pieces one after the other; false where there is no zlib.
  bool begin(std::size_t size, std::string& out) {
    if (!ready_ || zlib_.deflate_reset(&stream_) != Zlib::kOk) return false;
    out.resize(zlib_.deflate_bound(&stream_, size));
    stream_.next_out = reinterpret_cast<unsigned char*>(out.data());
    stream_.available_out = static_cast<unsigned>(out.size());
    return true;
  }
  void add(std::string_view piece) { run(piece, 0); }
  void end(std::string& out) {
    run({}, Zlib::kFinish);
    out.resize(out.size() - stream_.available_out);
  }

 private:
  void run(std::string_view piece, int how) {
    stream_.next_in = reinterpret_cast<const unsigned char*>(piece.data());
    stream_.available_in = static_cast<unsigned>(piece.size());
    zlib_.deflate(&stream_, how);
  }

  const Zlib& zlib_ = Zlib::library();
  ZStream stream_;
  bool ready_ = false;
};

}  // namespace astrarium::protocol
