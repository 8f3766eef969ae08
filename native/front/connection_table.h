// The open connections of a thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "front/long_way.h"

namespace astrarium::front {

// Connections by their place. A number's parts are the place, how often that was used before, and the thread.
template <class Connection>
class ConnectionTable {
 public:
  Connection& add(int fd, int thread) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(all_.size()));
      all_.push_back({std::make_unique<Connection>(), 0});
    }
    Place& place = all_[free_.back()];
    const std::uint64_t generation = place.generation++ & 0xffffffu;
    place.connection->fd = fd;
    place.connection->number =
        std::uint64_t{free_.back()} | generation << 24 | static_cast<std::uint64_t>(thread) << 48;
    free_.pop_back();
    ++open_;
    return *place.connection;
  }

  void remove(Connection& connection) {
    free_.push_back(static_cast<std::uint32_t>(connection.number & 0xffffffu));
    // assigning would keep the memory of texts
    std::destroy_at(&connection);
    std::construct_at(&connection);
    --open_;
  }

  // Nothing where it has closed.
  Connection* find(ConnectionNumber number) {
    const std::size_t slot = number & 0xffffffu;
    if (slot >= all_.size()) return nullptr;
    Connection& connection = *all_[slot].connection;
    return connection.fd >= 0 && connection.number == number ? &connection : nullptr;
  }

  template <class Work>
  void for_each(Work work) {
    for (std::size_t slot = 0; slot < all_.size(); ++slot)
      if (all_[slot].connection->fd >= 0) work(*all_[slot].connection);
  }

  bool empty() const { return open_ == 0; }

 private:
  struct Place {
    std::unique_ptr<Connection> connection;
    std::uint32_t generation;
  };
  std::vector<Place> all_;
  std::vector<std::uint32_t> free_;
  std::size_t open_ = 0;
};

}  // namespace astrarium::front
