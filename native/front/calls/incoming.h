// The rest of a large request: its tensors are received straight where workers find them, or thrown away where its call
// was refused before they came.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

namespace astrarium::front {

struct ClientTicket;

struct Incoming {
  struct Place {
    char* to;
    std::size_t size;
  };

  ClientTicket* ticket = nullptr;  // the call; nothing where it was refused
  std::size_t left = 0;            // bytes that have not come yet
  std::vector<Place> places;       // of a call's tensors, in the order in which they come; empty ones have no place

  bool is_refused() const { return ticket == nullptr; }
  const Place& next() const { return places[at_]; }

  // So many bytes have come.
  void advance(std::size_t size) {
    left -= size;
    if (is_refused()) return;
    places[at_].to += size;
    places[at_].size -= size;
    if (places[at_].size == 0) ++at_;
  }

  // These came before anybody knew where they belong.
  void land(std::string_view data) {
    while (!data.empty() && !is_refused()) {
      const std::size_t size = std::min(data.size(), next().size);
      std::memcpy(next().to, data.data(), size);
      data.remove_prefix(size);
      advance(size);
    }
    left -= data.size();
  }

 private:
  std::size_t at_ = 0;
};

}  // namespace astrarium::front
