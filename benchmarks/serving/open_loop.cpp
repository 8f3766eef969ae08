// An open-loop HTTP/1.1 load generator: requests leave at instants fixed beforehand, whatever the server does.
//
// A latency is counted from the instant at which the request was due, so time that the generator or a full
// connection lost is part of it. Epoll, one request at a time on each kept-alive connection; large requests need
// several threads, which take turns in the plan. How far the generator itself fell behind its plan is reported, and how
// busy its busiest thread was: a run in which it fell behind says nothing.
//
//   open_loop --port N --request FILE (--rate R --seconds S [--seed N] | --arrivals FILE)
//
// A request file holds the raw bytes of one request. An arrivals file has a line for each request: nanoseconds
// since the start and, where there are several request files, which of them (0 is the first).

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using Nanoseconds = std::int64_t;
constexpr Nanoseconds MILLISECOND = 1'000'000, SECOND = 1'000'000'000;

static Nanoseconds time_of(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * SECOND + t.tv_nsec;
}

static Nanoseconds now() { return time_of(CLOCK_MONOTONIC); }

static Nanoseconds nanoseconds(double amount, Nanoseconds unit) {
  return static_cast<Nanoseconds>(std::llround(amount * static_cast<double>(unit)));
}

// ---- what to do -----------------------------------------------------------------------------------------

struct Options {
  std::string host = "127.0.0.1", arrivals, records;
  std::vector<std::string> requests;
  std::vector<double> weights;
  int port = 0;
  double rate = 0, seconds = 0, warmup = 0, slo_ms = 25, timeout_s = 5, window_ms = 1000;
  double lag_p99_ms = 1, lag_max_ms = 10;
  std::uint64_t seed = 1;
  std::size_t outstanding = 4096, threads = 1;
};

static Options read_options(int count, char** words) {
  Options o;
  auto number = [](const char* text) { return std::stod(text); };
  const std::map<std::string_view, double*> numbers = {
      {"--rate", &o.rate},           {"--seconds", &o.seconds},         {"--warmup", &o.warmup},
      {"--slo-ms", &o.slo_ms},       {"--timeout-s", &o.timeout_s},     {"--window-ms", &o.window_ms},
      {"--lag-p99-ms", &o.lag_p99_ms}, {"--lag-max-ms", &o.lag_max_ms}};
  const std::map<std::string_view, std::string*> texts = {
      {"--host", &o.host}, {"--arrivals", &o.arrivals}, {"--records", &o.records}};
  for (int i = 1; i < count; i += 2) {
    const std::string_view name = words[i];
    if (i + 1 == count) throw std::invalid_argument(std::string(name) + " needs a value");
    const char* value = words[i + 1];
    if (numbers.contains(name)) *numbers.at(name) = number(value);
    else if (texts.contains(name)) *texts.at(name) = value;
    else if (name == "--port") o.port = std::stoi(value);
    else if (name == "--seed") o.seed = std::stoull(value);
    else if (name == "--outstanding") o.outstanding = std::stoull(value);
    else if (name == "--threads") o.threads = std::stoull(value);
    else if (name == "--request") o.requests.emplace_back(value), o.weights.push_back(1);
    else if (name == "--weight" && !o.weights.empty()) o.weights.back() = number(value);
    else throw std::invalid_argument("there is no option " + std::string(name) + " (here)");
  }
  if (o.port <= 0 || o.requests.empty()) throw std::invalid_argument("--port and --request are needed");
  if (o.arrivals.empty() && (o.rate <= 0 || o.seconds <= 0))
    throw std::invalid_argument("--rate and --seconds, or --arrivals, are needed");
  if (o.window_ms <= 0 || o.outstanding == 0 || o.threads == 0)
    throw std::invalid_argument("--window-ms, --outstanding, --threads: above 0");
  return o;
}

static std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::invalid_argument("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

enum Outcome : int { PENDING = 0, TIMED_OUT = -1, NETWORK = -2, UNSENT = -3 };  // or an HTTP status

struct Request {
  Nanoseconds due = 0;      // since the start
  Nanoseconds lag = 0;      // how late the generator took it up
  Nanoseconds latency = 0;  // from `due`
  std::uint32_t kind = 0;   // which request file
  int outcome = PENDING;
  int connection = -1;
};

// A uniform number in (0, 1]. The standard fixes the generator but not its distributions.
static double uniform(std::mt19937_64& random) {
  return static_cast<double>((random() >> 11) + 1) * 0x1p-53;
}

// A Poisson process, given that it has as many arrivals as the rate promises: gaps are scaled to fill the time.
// Left to chance, a run of a thousand requests would often be a few percent off the rate that it is named by.
static std::vector<Request> poisson(const Options& o) {
  std::mt19937_64 gaps(o.seed), kinds(~o.seed);
  std::discrete_distribution<std::uint32_t> kind(o.weights.begin(), o.weights.end());
  const double length = o.warmup + o.seconds;
  std::vector<Request> plan(static_cast<std::size_t>(std::llround(o.rate * length)));
  std::vector<double> at(plan.size() + 1);
  double sum = 0;
  for (double& time : at) time = sum -= std::log(uniform(gaps));
  for (std::size_t i = 0; i < plan.size(); ++i) {
    plan[i].due = nanoseconds(at[i] * length / sum, SECOND);
    plan[i].kind = kind(kinds);
  }
  return plan;
}

static std::vector<Request> from_file(const Options& o) {
  std::ifstream file(o.arrivals);
  if (!file) throw std::invalid_argument("cannot read " + o.arrivals);
  std::vector<Request> plan;
  for (std::string line; std::getline(file, line);) {
    Request request;
    std::istringstream fields(line);
    if (!(fields >> request.due)) throw std::invalid_argument("not an arrival: " + line);
    fields >> request.kind;
    if (request.kind >= o.requests.size() || (!plan.empty() && request.due < plan.back().due))
      throw std::invalid_argument("arrivals must be in order and of a request file that was given: " + line);
    plan.push_back(request);
  }
  return plan;
}

// ---- reading a reply ------------------------------------------------------------------------------------

class Reply {
 public:
  enum State { MORE, DONE, BROKEN };

  int status = 0;
  bool keep_alive = true;

  bool begun() const { return phase_ != HEAD || !head_.empty(); }
  bool ends_with_the_connection() const { return phase_ == UNTIL_CLOSE; }

  State feed(std::string_view bytes) {
    while (!bytes.empty() || phase_ == END) {
      switch (phase_) {
        case HEAD: if (!take_head(bytes)) return BROKEN; break;
        case LENGTH: skip(bytes, END); break;
        case CHUNK: skip(bytes, CHUNK_END); break;
        case CHUNK_SIZE: if (take_line(bytes) && !begin_chunk()) return BROKEN; break;
        case CHUNK_END: if (take_line(bytes)) line_.clear(), phase_ = CHUNK_SIZE; break;
        case TRAILER: if (take_line(bytes)) phase_ = line_.empty() ? END : TRAILER, line_.clear(); break;
        case UNTIL_CLOSE: return MORE;
        case END: return bytes.empty() ? DONE : BROKEN;  // nobody asked for more
      }
    }
    return MORE;
  }

 private:
  enum Phase { HEAD, LENGTH, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSE, END };
  static constexpr std::size_t LONGEST_HEAD = 65536;

  Phase phase_ = HEAD;
  std::string head_, line_;
  std::uint64_t left_ = 0;

  bool take_head(std::string_view& bytes) {
    const std::size_t before = head_.size();
    head_.append(bytes);
    const std::size_t end = head_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
    if (end == std::string::npos) {
      bytes = {};
      return head_.size() <= LONGEST_HEAD;
    }
    bytes.remove_prefix(end + 4 - before);
    head_.resize(end + 2);
    return read_head();
  }

  bool read_head() {
    if (head_.size() < 12 || !head_.starts_with("HTTP/1.")) return false;
    keep_alive = head_[7] != '0';
    status = std::atoi(head_.c_str() + 9);
    if (status < 200) {  // an interim reply: the real one follows
      head_.clear();
      return status >= 100;
    }
    phase_ = status == 204 || status == 304 ? END : UNTIL_CLOSE;
    for (std::size_t at = head_.find("\r\n") + 2; at < head_.size();) {
      const std::size_t end = head_.find("\r\n", at);
      read_header(std::string_view(head_).substr(at, end - at));
      at = end + 2;
    }
    keep_alive = keep_alive && phase_ != UNTIL_CLOSE;
    return true;
  }

  void read_header(std::string_view line) {
    std::string lower(line);
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    if (lower.starts_with("content-length:")) {
      left_ = std::strtoull(lower.c_str() + 15, nullptr, 10);
      phase_ = left_ ? LENGTH : END;
    } else if (lower.starts_with("transfer-encoding:") && lower.find("chunked") != std::string::npos) {
      phase_ = CHUNK_SIZE;
    } else if (lower.starts_with("connection:")) {
      keep_alive = lower.find("close") == std::string::npos && (keep_alive || lower.find("keep-alive") != lower.npos);
    }
  }

  void skip(std::string_view& bytes, Phase next) {
    const std::uint64_t taken = std::min<std::uint64_t>(left_, bytes.size());
    bytes.remove_prefix(taken);
    if ((left_ -= taken) == 0) phase_ = next;
  }

  // Whether `line_` is complete; it is without its line end then.
  bool take_line(std::string_view& bytes) {
    const std::size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (end == std::string_view::npos) return false;
    if (line_.ends_with('\r')) line_.pop_back();
    return true;
  }

  bool begin_chunk() {
    const auto [_, error] = std::from_chars(line_.data(), line_.data() + line_.size(), left_, 16);
    phase_ = left_ ? CHUNK : TRAILER;
    line_.clear();
    return error == std::errc{};
  }
};

// ---- sending --------------------------------------------------------------------------------------------

struct Connection {
  enum State { FREE, CONNECTING, IDLE, BUSY };
  State state = FREE;
  int fd = -1;
  std::uint32_t generation = 0;  // tells an event of this slot's earlier connection from one of its own
  std::int64_t request = -1;
  std::size_t sent = 0;
  bool used = false;  // it has answered before: a close without a reply may be no more than keep-alive's end
  Reply reply;
};

class Generator {
 public:
  Generator(const Options& options, std::vector<Request> plan)
      : plan(std::move(plan)), o_(options), connections_(std::max<std::size_t>(1, options.outstanding / options.threads)) {
    for (const std::string& path : o_.requests) texts_.push_back(contents(path));
    for (std::size_t i = connections_.size(); i-- > 0;) free_.push_back(static_cast<int>(i));
    address_.sin_family = AF_INET;
    address_.sin_port = htons(static_cast<std::uint16_t>(o_.port));
    if (inet_pton(AF_INET, o_.host.c_str(), &address_.sin_addr) != 1)
      throw std::invalid_argument("--host: an IPv4 address, not " + o_.host);
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
  }

  void run(Nanoseconds start) {
    start_ = start;
    prefer_this_thread();
    const Nanoseconds timeout = nanoseconds(o_.timeout_s, SECOND);
    const Nanoseconds hard_end = start_ + (plan.empty() ? 0 : plan.back().due) + timeout + SECOND;
    while (finished_ < plan.size()) {
      const Nanoseconds time = now();
      submit_due(time);
      expire(time - timeout);
      if (time > hard_end) break;
      wait(std::min(next_ < plan.size() ? start_ + plan[next_].due : hard_end,
                    oldest_ < next_ ? start_ + plan[oldest_].due + timeout : hard_end) - now());
    }
    for (std::size_t i = 0; i < plan.size(); ++i)
      if (plan[i].outcome == PENDING) finish(i, TIMED_OUT);
    wall = now() - start_;
    cpu = time_of(CLOCK_THREAD_CPUTIME_ID);
  }

  std::vector<Request> plan;
  std::size_t most_outstanding = 0, connects = 0, retries = 0;
  Nanoseconds wall = 0, cpu = 0;
  bool realtime = false;

 private:
  Options o_;
  std::vector<std::string> texts_;
  std::vector<Connection> connections_;
  std::vector<int> free_, idle_;  // idle: the one used last goes first, so that the others may grow old
  sockaddr_in address_{};
  int epoll_ = -1;
  Nanoseconds start_ = 0;
  std::size_t next_ = 0, oldest_ = 0, finished_ = 0;

  // Where we may: it stands for other machines.
  void prefer_this_thread() {
    prctl(PR_SET_TIMERSLACK, 1);
    sched_param priority{};
    priority.sched_priority = 1;
    realtime = sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
  }

  void submit_due(Nanoseconds time) {
    for (; next_ < plan.size() && start_ + plan[next_].due <= time; ++next_) {
      plan[next_].lag = now() - start_ - plan[next_].due;
      submit(next_);
    }
    most_outstanding = std::max(most_outstanding, next_ - finished_);
  }

  void submit(std::size_t request) {
    while (!idle_.empty()) {
      const int i = idle_.back();
      idle_.pop_back();
      if (connections_[i].state != Connection::IDLE) continue;  // closed by the server meanwhile
      begin(i, request);
      return;
    }
    connect_for(request);
  }

  void connect_for(std::size_t request) {
    if (free_.empty()) return finish(request, UNSENT);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return finish(request, UNSENT);
    const int i = free_.back();
    free_.pop_back();
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    Connection& c = connections_[i];
    const std::uint32_t generation = c.generation + 1;
    c = Connection{};
    c.state = Connection::CONNECTING;
    c.fd = fd;
    c.generation = generation;
    c.request = static_cast<std::int64_t>(request);
    plan[request].connection = i;
    ++connects;
    epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                      .data = {.u64 = static_cast<std::uint64_t>(c.generation) << 32 | static_cast<unsigned>(i)}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address_), sizeof address_) == 0) begin(i, request);
    else if (errno != EINPROGRESS) lose(i);
  }

  void begin(int i, std::size_t request) {
    Connection& c = connections_[i];
    c.state = Connection::BUSY;
    c.request = static_cast<std::int64_t>(request);
    c.sent = 0;
    c.reply = Reply{};
    plan[request].connection = i;
    flush(i);
  }

  void flush(int i) {
    Connection& c = connections_[i];
    const std::string& text = texts_[plan[c.request].kind];
    while (c.sent < text.size()) {
      const ssize_t n = send(c.fd, text.data() + c.sent, text.size() - c.sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n < 0) return lose(i);
      c.sent += static_cast<std::size_t>(n);
    }
  }

  void wait(Nanoseconds duration) {
    epoll_event events[32];
    duration = std::max<Nanoseconds>(duration, 0);
    const timespec timeout{duration / SECOND, duration % SECOND};
    const int count = epoll_pwait2(epoll_, events, std::size(events), &timeout, nullptr);
    for (int k = 0; k < count; ++k) {
      const int i = static_cast<int>(events[k].data.u64 & 0xffffffff);
      if (connections_[i].state != Connection::FREE && connections_[i].generation == events[k].data.u64 >> 32)
        handle(i, events[k].events);
    }
  }

  void handle(int i, std::uint32_t what) {
    Connection& c = connections_[i];
    if (c.state == Connection::CONNECTING) {
      if (what & (EPOLLERR | EPOLLHUP)) return lose(i);
      if (what & EPOLLOUT) begin(i, static_cast<std::size_t>(c.request));
    } else if (what & EPOLLOUT && c.state == Connection::BUSY) {
      flush(i);
    }
    if (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) receive(i);
  }

  void receive(int i) {
    static thread_local char buffer[65536];
    Connection& c = connections_[i];
    while (c.state == Connection::BUSY || c.state == Connection::IDLE) {
      const ssize_t n = recv(c.fd, buffer, sizeof buffer, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n == 0 && c.state == Connection::BUSY && c.reply.ends_with_the_connection()) return complete(i);
      if (n <= 0 || c.state == Connection::IDLE) return lose(i);
      const Reply::State state = c.reply.feed({buffer, static_cast<std::size_t>(n)});
      if (state == Reply::BROKEN) return lose(i);
      if (state == Reply::DONE) complete(i);
    }
  }

  void complete(int i) {
    Connection& c = connections_[i];
    finish(static_cast<std::size_t>(c.request), c.reply.status);
    c.request = -1;
    if (!c.reply.keep_alive) return drop(i);
    c.used = true;
    c.state = Connection::IDLE;
    idle_.push_back(i);
  }

  // The connection broke. A kept-alive one that gave no byte had been closed already: once more, on a new one.
  void lose(int i) {
    Connection& c = connections_[i];
    const std::int64_t request = c.request;
    const bool stale = c.used && !c.reply.begun();
    drop(i);
    if (request < 0) return;
    if (!stale) return finish(static_cast<std::size_t>(request), NETWORK);
    ++retries;
    connect_for(static_cast<std::size_t>(request));
  }

  void drop(int i) {
    close(connections_[i].fd);
    connections_[i].state = Connection::FREE;
    connections_[i].request = -1;
    free_.push_back(i);
  }

  void finish(std::size_t request, int outcome) {
    Request& r = plan[request];
    r.outcome = outcome;
    r.latency = now() - start_ - r.due;
    r.connection = -1;
    ++finished_;
  }

  // Requests are in order of time and all have the same patience, so the oldest ones go first.
  void expire(Nanoseconds before) {
    for (; oldest_ < next_; ++oldest_) {
      Request& r = plan[oldest_];
      if (r.outcome != PENDING) continue;
      if (start_ + r.due > before) return;
      const int i = r.connection;
      finish(oldest_, TIMED_OUT);
      connections_[i].request = -1;
      drop(i);
    }
  }
};

// All of a plan, by one thread or by several that take turns in it.
struct Whole {
  std::vector<Request> plan;
  std::size_t most_outstanding = 0, connects = 0, retries = 0;  // the first is the sum of each one's most
  Nanoseconds wall = 0;
  double busiest = 0;  // share of the time in which a thread had a core
  bool realtime = true;
};

static std::vector<Generator> divided(const Options& o, const std::vector<Request>& plan) {
  std::vector<std::vector<Request>> parts(o.threads);
  for (std::size_t i = 0; i < plan.size(); ++i) parts[i % o.threads].push_back(plan[i]);
  std::vector<Generator> generators;
  for (auto& part : parts) generators.emplace_back(o, std::move(part));
  return generators;
}

static Whole offered(const Options& o, std::vector<Request> plan) {
  std::vector<Generator> generators = divided(o, plan);
  std::vector<std::thread> threads;
  const Nanoseconds start = now() + 10 * MILLISECOND;
  for (Generator& one : generators) threads.emplace_back([&one, start] { one.run(start); });
  for (std::thread& thread : threads) thread.join();
  Whole whole{std::move(plan)};
  for (std::size_t i = 0; i < whole.plan.size(); ++i) whole.plan[i] = generators[i % o.threads].plan[i / o.threads];
  for (const Generator& one : generators) {
    whole.most_outstanding += one.most_outstanding, whole.connects += one.connects, whole.retries += one.retries;
    whole.wall = std::max(whole.wall, one.wall), whole.realtime = whole.realtime && one.realtime;
    whole.busiest = std::max(whole.busiest, static_cast<double>(one.cpu) / static_cast<double>(one.wall));
  }
  return whole;
}

// ---- what came of it ------------------------------------------------------------------------------------

static double milliseconds(Nanoseconds t) { return static_cast<double>(t) / MILLISECOND; }

// Percentiles by rank, as a JSON object.
static std::string spread(std::vector<Nanoseconds> values) {
  if (values.empty()) return "null";
  std::ranges::sort(values);
  const auto at = [&](double share) {
    const double rank = std::ceil(share * static_cast<double>(values.size())) - 1;
    return milliseconds(values[static_cast<std::size_t>(std::max(rank, 0.0))]);
  };
  double sum = 0;
  for (const Nanoseconds value : values) sum += milliseconds(value);
  char text[256];
  std::snprintf(text, sizeof text, R"({"mean":%.4f,"p50":%.4f,"p90":%.4f,"p99":%.4f,"p999":%.4f,"max":%.4f})",
                sum / static_cast<double>(values.size()), at(.5), at(.9), at(.99), at(.999), at(1));
  return text;
}

static std::string list(const std::vector<long>& values) {
  std::string text;
  for (const long value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return "[" + text + "]";
}

static double cpu_seconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

static void report(const Options& o, const Whole& g) {
  const Nanoseconds warmup = nanoseconds(o.warmup, SECOND), slo = nanoseconds(o.slo_ms, MILLISECOND);
  const Nanoseconds window = nanoseconds(o.window_ms, MILLISECOND);
  long offered = 0, in_time = 0, late = 0, refused = 0;
  std::map<int, long> outcomes;
  std::vector<Nanoseconds> latencies, refusals, lags;
  std::vector<long> offered_in, in_time_in;
  for (const Request& r : g.plan) {
    if (r.due < warmup) continue;
    const std::size_t w = static_cast<std::size_t>((r.due - warmup) / window);
    if (w >= offered_in.size()) offered_in.resize(w + 1), in_time_in.resize(w + 1);
    const bool answered = r.outcome >= 200 && r.outcome < 300, timely = answered && r.latency <= slo;
    ++offered, ++offered_in[w], ++outcomes[r.outcome];
    in_time += timely, in_time_in[w] += timely, late += answered && !timely;
    refused += r.outcome > 0 && !answered;
    lags.push_back(r.lag);
    if (r.outcome > 0) (answered ? latencies : refusals).push_back(r.latency);
  }
  std::string codes;
  for (const auto& [outcome, count] : outcomes)
    if (outcome > 0) codes += (codes.empty() ? "\"" : ",\"") + std::to_string(outcome) + "\":" + std::to_string(count);
  const std::string lag = spread(lags);
  std::ranges::sort(lags);
  const bool usable = !lags.empty() && milliseconds(lags.back()) <= o.lag_max_ms &&
                      milliseconds(lags[(lags.size() - 1) * 99 / 100]) <= o.lag_p99_ms;
  const double seconds = o.seconds > 0 ? o.seconds : g.plan.empty() ? 0 : static_cast<double>(g.plan.back().due - warmup) / SECOND;
  std::printf(R"({"seconds":%.6f,"offered":%ld,"in_time":%ld,"late":%ld,"refused":%ld,"timeouts":%ld,)"
              R"("network_errors":%ld,"unsent":%ld,"codes":{%s},"latency_ms":%s,"refusal_ms":%s,)"
              R"("window_ms":%.3f,"offered_in":%s,"in_time_in":%s,"lag_ms":%s,"usable":%s,)"
              R"("most_outstanding":%zu,"connects":%zu,"retries":%zu,"realtime":%s,"cpu_s":%.4f,"busiest":%.3f,"wall_s":%.4f})" "\n",
              seconds, offered, in_time, late, refused, outcomes[TIMED_OUT], outcomes[NETWORK], outcomes[UNSENT],
              codes.c_str(), spread(latencies).c_str(), spread(refusals).c_str(), o.window_ms,
              list(offered_in).c_str(), list(in_time_in).c_str(), lag.c_str(), usable ? "true" : "false",
              g.most_outstanding, g.connects, g.retries, g.realtime ? "true" : "false",
              cpu_seconds(), g.busiest, static_cast<double>(g.wall) / SECOND);
}

static void write_records(const std::string& path, const std::vector<Request>& plan) {
  std::ofstream file(path);
  file << "due_ns,latency_ns,outcome,request,lag_ns\n";
  for (const Request& r : plan)
    file << r.due << ',' << r.latency << ',' << r.outcome << ',' << r.kind << ',' << r.lag << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

int main(int count, char** words) {
  try {
    const Options options = read_options(count, words);
    const Whole whole = offered(options, options.arrivals.empty() ? poisson(options) : from_file(options));
    if (!options.records.empty()) write_records(options.records, whole.plan);
    report(options, whole);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "open_loop: %s\n", error.what());
    return 2;
  }
}
