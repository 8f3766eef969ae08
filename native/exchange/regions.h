// Regions: shared memory of clients on this machine, where the tensors of their calls lie (the protocol's extension
// for system shared memory). A region is read and written through its descriptor and never mapped: whose owner makes it
// shorter gets an error, and nobody a SIGBUS.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/descriptors.h"

namespace astrarium::front {

// Who has registered a region, and may use it: a user of this machine, and an API key if there are any.
struct RegionOwner {
  static constexpr std::int64_t kAnyUser = -1;  // users are not told apart
  static constexpr std::int64_t kUnknown = -2;  // nobody knows who it is, so that there is nothing for them

  std::int64_t user = kUnknown;
  std::int64_t key = -1;  // its number; -1: there are none

  auto operator<=>(const RegionOwner&) const = default;
};

// What a client asks to be registered.
struct RegionRequest {
  std::string name, key;
  std::uint64_t offset = 0, size = 0;
};

// What is wrong with a request: its field, and what would be right. No field: there are too many already.
struct RegionProblem {
  std::string field, expected;
};

class Region {
 public:
  Region(RegionRequest what, int fd, bool is_writable) : what_(std::move(what)), fd_(fd), is_writable_(is_writable) {}
  ~Region() { ::close(fd_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const RegionRequest& what() const { return what_; }
  bool is_writable() const { return is_writable_; }

  // Whether so many bytes from there on are part of it.
  bool holds(std::uint64_t at, std::uint64_t size) const { return at <= what_.size && size <= what_.size - at; }

  // False where it has become shorter.
  bool read(std::uint64_t at, char* to, std::size_t size) const {
    return holds(at, size) && move_all(at, size, [this, &to](std::size_t left, off_t place) {
             const ssize_t read = ::pread(fd_, to, left, place);
             if (read > 0) to += read;
             return read;
           });
  }

  // The same. A file that has become shorter would grow again, at our expense: it is looked at first.
  bool write(std::uint64_t at, std::string_view data) const {
    struct stat now{};
    if (!is_writable_ || !holds(at, data.size()) || ::fstat(fd_, &now) != 0 ||
        static_cast<std::uint64_t>(now.st_size) < what_.offset + at + data.size())
      return false;
    const char* from = data.data();
    return move_all(at, data.size(), [this, &from](std::size_t left, off_t place) {
      const ssize_t written = ::pwrite(fd_, from, left, place);
      if (written > 0) from += written;
      return written;
    });
  }

 private:
  template <class Move>
  bool move_all(std::uint64_t at, std::size_t size, Move move) const {
    std::uint64_t place = what_.offset + at;
    while (size > 0) {
      const ssize_t moved = move(size, static_cast<off_t>(place));
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return false;
      place += static_cast<std::uint64_t>(moved);
      size -= static_cast<std::size_t>(moved);
    }
    return true;
  }

  RegionRequest what_;
  int fd_;
  bool is_writable_;
};

// A part of a region, which is there as long as somebody holds this: to unregister it meanwhile is harmless.
struct RegionPart {
  std::shared_ptr<const Region> region;  // nothing: the tensor lies elsewhere
  std::uint64_t at = 0;
  std::size_t size = 0;
};

class Regions {
 public:
  static constexpr std::size_t kMost = 4096, kMostOfOwner = 1024;  // regions, each of which needs a descriptor
  static constexpr std::size_t kLongestName = 256, kLongestKey = 255;

  // Before any thread looks: so many bytes may be registered. *local*: each user of this machine has their own, and
  // reaches no memory of others.
  void allow(std::uint64_t most_bytes, bool local) {
    most_bytes_ = most_bytes;
    local_ = local;
  }
  bool allowed() const { return most_bytes_ > 0; }
  bool tells_users_apart() const { return local_; }

  // What is wrong, if anything.
  RegionProblem add(const RegionOwner& owner, RegionRequest request) {
    if (RegionProblem problem = check(request); !problem.expected.empty()) return problem;
    std::shared_ptr<const Region> region;
    if (RegionProblem problem = open(owner, request, region); !problem.expected.empty()) return problem;
    const std::unique_lock lock(mutex_);
    if (RegionProblem problem = has_place(owner, request); !problem.expected.empty()) return problem;
    bytes_ += request.size;
    all_.emplace(std::pair(owner, std::move(request.name)), std::move(region));
    return {};
  }

  // Without *name*, all that this one has registered. Returns how many there were.
  std::size_t remove(const RegionOwner& owner, std::string_view name) {
    std::vector<std::shared_ptr<const Region>> removed;  // closed without the lock
    const std::unique_lock lock(mutex_);
    auto at = all_.lower_bound(std::pair(owner, name));
    while (at != all_.end() && at->first.first == owner && (name.empty() || at->first.second == name)) {
      bytes_ -= at->second->what().size;
      removed.push_back(std::move(at->second));
      at = all_.erase(at);
    }
    return removed.size();
  }

  // Nothing where this one has registered none of that name.
  std::shared_ptr<const Region> find(const RegionOwner& owner, std::string_view name) const {
    const std::shared_lock lock(mutex_);
    const auto known = all_.find(std::pair(owner, name));
    return known == all_.end() ? nullptr : known->second;
  }

  // A part of a region that this one has registered; nothing where there is no such part.
  RegionPart part(const RegionOwner& owner, std::string_view name, std::uint64_t at, std::size_t size) const {
    RegionPart part{find(owner, name), at, size};
    if (part.region != nullptr && !part.region->holds(at, size)) part.region = nullptr;
    return part;
  }

  std::vector<std::shared_ptr<const Region>> of(const RegionOwner& owner) const {
    std::vector<std::shared_ptr<const Region>> found;
    const std::shared_lock lock(mutex_);
    for (auto at = all_.lower_bound(std::pair(owner, std::string_view())); at != all_.end() && at->first.first == owner;
         ++at)
      found.push_back(at->second);
    return found;
  }

  std::pair<std::size_t, std::uint64_t> totals() const {
    const std::shared_lock lock(mutex_);
    return {all_.size(), bytes_};
  }

 private:
  struct Before {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return std::tuple(a.first, std::string_view(a.second)) < std::tuple(b.first, std::string_view(b.second));
    }
  };

  static RegionProblem check(RegionRequest& request) {
    constexpr std::string_view kOurs = "astrarium";
    if (request.name.empty() || request.name.size() > kLongestName)
      return {"name", "from 1 to " + std::to_string(kLongestName) + " bytes"};
    std::string_view key = request.key;
    if (!key.empty() && key.front() == '/') key.remove_prefix(1);
    if (key.empty() || key.size() > kLongestKey || key == "." || key == ".." ||
        key.find_first_of(std::string_view("/\0", 2)) != std::string_view::npos)
      return {"key", "the name of a POSIX shared memory object: '/' and up to 255 bytes without another '/'"};
    if (key.substr(0, kOurs.size()) == kOurs) return {"key", "memory of a client: the server's own is not for calls"};
    if (request.size == 0) return {"byte_size", "at least 1 byte"};
    constexpr std::uint64_t kEnd = std::numeric_limits<off_t>::max();
    if (request.offset > kEnd || request.size > kEnd - request.offset)
      return {"byte_size", "with the offset at most " + std::to_string(kEnd)};
    return {};
  }

  // Whoever *owner* is must have a right to the memory: it is theirs, or everybody may.
  RegionProblem open(const RegionOwner& owner, const RegionRequest& request, std::shared_ptr<const Region>& region) {
    if (totals().first >= kMost) return full();
    int fd = open_key(request.key, O_RDWR);
    const bool is_writable = fd >= 0;
    if (fd < 0 && errno == EACCES) fd = open_key(request.key, O_RDONLY);
    if (fd < 0) return not_opened(errno);
    struct stat file{};
    const bool known = ::fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
    const std::int64_t user = local_ ? owner.user : static_cast<std::int64_t>(::geteuid());
    const bool is_theirs = known && static_cast<std::int64_t>(file.st_uid) == user;
    region = std::make_shared<const Region>(request, fd, is_writable && (is_theirs || file.st_mode & S_IWOTH));
    if (!known) return {"key", "shared memory, which this is not"};
    if (!is_theirs && !(file.st_mode & S_IROTH))
      return {"key", "memory that belongs to the client's own user, or that everybody may read"};
    if (fd >= most_descriptors()) return full();
    const auto size = static_cast<std::uint64_t>(file.st_size);
    if (request.offset + request.size > size)
      return {"byte_size", "with the offset at most " + std::to_string(size) + ", as large as the memory is"};
    return {};
  }

  static int open_key(const std::string& key, int mode) {
    return ::shm_open(key.c_str(), mode | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0);
  }

  static RegionProblem not_opened(int error) {
    if (error == EMFILE || error == ENFILE) return full();
    return {"key", std::string("shared memory that the server may open: ") + std::strerror(error)};
  }

  static RegionProblem full() { return {"", "fewer regions: there is no place for another"}; }

  // With the lock.
  RegionProblem has_place(const RegionOwner& owner, const RegionRequest& request) const {
    if (all_.contains(std::pair(owner, std::string_view(request.name))))
      return {"name", "one that is not registered: unregister it before"};
    std::size_t theirs = 0;
    for (auto at = all_.lower_bound(std::pair(owner, std::string_view())); at != all_.end() && at->first.first == owner;
         ++at)
      ++theirs;
    if (all_.size() >= kMost || theirs >= kMostOfOwner) return full();
    if (request.size > most_bytes_ - bytes_)
      return {"", "at most " + std::to_string(most_bytes_) + " bytes in all regions (server.shared_memory)"};
    return {};
  }

  std::uint64_t most_bytes_ = 0;
  bool local_ = true;
  mutable std::shared_mutex mutex_;
  std::map<std::pair<RegionOwner, std::string>, std::shared_ptr<const Region>, Before> all_;
  std::uint64_t bytes_ = 0;
};

}  // namespace astrarium::front
