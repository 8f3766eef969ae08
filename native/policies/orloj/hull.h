// Twin of astrarium.serving.policies.orloj.hull. The Python file says what it means; the names are the same.
// Nodes live in an arena and are known by their index: nothing is allocated in the long run.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/id_map.h"

namespace astrarium {

class HullQueue {
 public:
  std::size_t size() const { return leaves_.size(); }
  bool contains(std::int64_t id) const { return leaves_.find(id) >= 0; }

  void clear() {
    root_ = kNobody;
    nodes_.clear();
    splits_.clear();
    free_.clear();
    leaves_.clear();
  }

  void insert(std::int64_t id, double alpha, double beta) {
    if (contains(id) || !std::isfinite(alpha) || !std::isfinite(beta))
      throw std::invalid_argument("a point must have a new id and be finite");
    const Key key{alpha, beta, id};
    const Index leaf = make(key);
    leaves_.add(id, leaf);
    if (root_ == kNobody) {
      root_ = leaf;
      return;
    }
    find_path(key);
    const Index neighbour = pop();
    replace(neighbour, join(neighbour, leaf));
    while (!path_.empty()) {
      const Index node = pop();
      ++at(node).weight;
      const Index top = balanced(node);
      if (top != node) {
        replace(node, top);
      } else {
        came(node, key);
      }
    }
  }

  void remove(std::int64_t id) {
    const Index leaf = leaves_.take(id);
    if (leaf < 0) throw std::out_of_range("no such id in the queue");
    const Key key = split(leaf);
    find_path(key);
    free_.push_back(pop());
    if (path_.empty()) {
      root_ = kNobody;
      return;
    }
    const Index parent = pop();
    const Key before = split(parent);
    free_.push_back(parent);
    replace(parent, leaf == at(parent).right ? at(parent).left : at(parent).right);
    while (!path_.empty()) {
      const Index node = pop();
      --at(node).weight;
      if (split(node) == key) split(node) = before;
      const Index top = balanced(node);
      if (top != node) {
        replace(node, top);
      } else {
        went(node, leaf);
      }
    }
  }

  std::int64_t best(double slope) const {
    if (root_ == kNobody) throw std::out_of_range("the queue is empty");
    Index node = root_;
    while (at(node).weight > 1) node = slope > at(node).crossing ? at(node).right : at(node).left;
    const Key first{at(node).start.alpha, at(node).start.beta, std::numeric_limits<std::int64_t>::min()};
    node = root_;
    while (at(node).weight > 1) node = first <= split(node) ? at(node).left : at(node).right;
    return split(node).id;
  }

  // Inner nodes from the root to the deepest leaf: for tests.
  int depth() const { return root_ == kNobody ? 0 : depth_below(root_); }

 private:
  using Index = std::int32_t;
  static constexpr Index kNobody = -1;
  static constexpr int kHeavier = 3, kInner = 2;
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  struct Key {
    double alpha, beta;
    std::int64_t id;
    auto operator<=>(const Key&) const = default;
  };

  struct Point {
    double alpha, beta;
  };

  // All that the search for a bridge looks at, in one line of the cache.
  struct alignas(64) Node {
    double crossing;
    Point start, end;
    Index left, right, weight, start_leaf, end_leaf;
  };
  static_assert(sizeof(Node) == 64);

  Key& split(Index node) { return splits_[static_cast<std::size_t>(node)]; }
  const Key& split(Index node) const { return splits_[static_cast<std::size_t>(node)]; }
  Node& at(Index node) { return nodes_[static_cast<std::size_t>(node)]; }
  const Node& at(Index node) const { return nodes_[static_cast<std::size_t>(node)]; }

  Index make(const Key& key) {
    Index node = static_cast<Index>(nodes_.size());
    if (free_.empty()) {
      nodes_.emplace_back();
      splits_.emplace_back();
    } else {
      node = free_.back();
      free_.pop_back();
    }
    const Point itself{key.alpha, key.beta};
    at(node) = {kInfinity, itself, itself, kNobody, kNobody, 1, node, node};
    split(node) = key;
    return node;
  }

  // Down to the first leaf that is not before the key.
  void find_path(const Key& key) {
    path_.assign(1, root_);
    while (at(path_.back()).weight > 1) {
      const Index node = path_.back();
      path_.push_back(key <= split(node) ? at(node).left : at(node).right);
    }
  }

  Index pop() {
    const Index node = path_.back();
    path_.pop_back();
    return node;
  }

  void replace(Index old, Index with) {
    if (path_.empty()) {
      root_ = with;
    } else if (Node& parent = at(path_.back()); parent.left == old) {
      parent.left = with;
    } else {
      parent.right = with;
    }
  }

  template <class Left, class Right>
  static double crossing(const Left& left, const Right& right) {
    const double rise = right.alpha - left.alpha;
    if (rise > 0.0) return (left.beta - right.beta) / rise;
    return left.beta == right.beta ? kInfinity : -kInfinity;
  }

  void came(Index index, const Key& key) {
    const Node& node = at(index);
    if (key <= split(index)) {
      if (crossing(key, node.end) > node.crossing) find_bridge(index, node.crossing, kInfinity);
    } else if (crossing(node.start, key) < node.crossing) {
      find_bridge(index, -kInfinity, node.crossing);
    }
  }

  void went(Index index, Index leaf) {
    const Node& node = at(index);
    if (leaf == node.start_leaf) {
      find_bridge(index, -kInfinity, node.crossing);
    } else if (leaf == node.end_leaf) {
      find_bridge(index, node.crossing, kInfinity);
    }
  }

  void find_bridge(Index index, double low = -kInfinity, double high = kInfinity) {
    Node& node = at(index);
    const double middle = split(index).alpha;
    const Node *left = &at(node.left), *right = &at(node.right);
    while (left->weight > 1 || right->weight > 1) {
      const auto [into_left, later] = choose(*left, *right, middle, low, high);
      const Node*& half = into_left ? left : right;
      if (later) {
        low = std::max(low, half->crossing);
      } else {
        high = std::min(high, half->crossing);
      }
      half = &at(later ? half->right : half->left);
    }
    node.start = left->start;
    node.end = right->end;
    node.start_leaf = left->start_leaf;
    node.end_leaf = right->end_leaf;
    node.crossing = std::max(low, std::min(high, crossing(node.start, node.end)));
  }

  struct Choice {
    bool into_left, later;
  };

  static Choice choose(const Node& left, const Node& right, double middle, double low, double high) {
    if (left.weight > 1 && !(low < left.crossing && left.crossing < high)) return {true, left.crossing <= low};
    if (right.weight > 1 && !(low < right.crossing && right.crossing < high)) return {false, right.crossing <= low};
    if (left.weight == 1) return {false, crossing(left.start, right.start) >= right.crossing};
    if (right.weight == 1) return {true, crossing(left.end, right.end) >= left.crossing};
    if (left.crossing > right.crossing) {
      const bool later = crossing(left.end, right.end) >= left.crossing;
      return {!later, later};
    }
    const double meeting = crossing(left.end, right.start);
    if (meeting < left.crossing) return {true, false};
    if (meeting >= right.crossing) return {false, true};
    const bool later = rises_less(left, right, meeting, middle);
    return {later, later};
  }

  static bool rises_less(const Node& left, const Node& right, double meeting, double middle) {
    const double after = (right.start.alpha - middle) * (right.crossing - meeting);
    return after <= (middle - left.end.alpha) * (meeting - left.crossing);
  }

  Index join(Index index, Index other) {
    if (split(other) < split(index)) std::swap(index, other);
    const Index node = make(Key(split(index)));
    at(node).left = index;
    at(node).right = other;
    refresh(node);
    return node;
  }

  Index balanced(Index index) {
    const Index left = at(index).left, right = at(index).right;
    if (at(right).weight > kHeavier * at(left).weight) {
      if (weight(at(right).left) >= kInner * weight(at(right).right)) at(index).right = rotate_right(right);
      return rotate_left(index);
    }
    if (at(left).weight > kHeavier * at(right).weight) {
      if (weight(at(left).right) >= kInner * weight(at(left).left)) at(index).left = rotate_left(left);
      return rotate_right(index);
    }
    return index;
  }

  Index rotate_left(Index node) {
    const Index top = at(node).right;
    at(node).right = std::exchange(at(top).left, node);
    refresh(node);
    refresh(top);
    return top;
  }

  Index rotate_right(Index node) {
    const Index top = at(node).left;
    at(node).left = std::exchange(at(top).right, node);
    refresh(node);
    refresh(top);
    return top;
  }

  void refresh(Index node) {
    at(node).weight = weight(at(node).left) + weight(at(node).right);
    find_bridge(node);
  }

  Index weight(Index node) const { return at(node).weight; }

  int depth_below(Index node) const {
    if (at(node).weight == 1) return 0;
    return 1 + std::max(depth_below(at(node).left), depth_below(at(node).right));
  }

  Index root_ = kNobody;
  std::vector<Node> nodes_;
  std::vector<Key> splits_;         // beside the nodes
  std::vector<Index> free_, path_;  // nodes to be used again; from the root down, in an update
  IdMap leaves_;
};

}  // namespace astrarium
