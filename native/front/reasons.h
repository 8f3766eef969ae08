// How often something happened, by reason: for what is rare, by any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace astrarium::front {

class Reasons {
 public:
  void count(std::string_view why) {
    const std::lock_guard lock(mutex_);
    const auto entry = counts_.find(why);
    if (entry != counts_.end()) ++entry->second;
    else counts_.emplace(why, 1);
  }
  std::map<std::string, std::int64_t> all() {
    const std::lock_guard lock(mutex_);
    return {counts_.begin(), counts_.end()};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::int64_t, std::less<>> counts_;
};

}  // namespace astrarium::front
