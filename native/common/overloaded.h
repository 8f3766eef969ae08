// One function out of several lambdas, for std::visit.
#pragma once

namespace astrarium {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace astrarium
