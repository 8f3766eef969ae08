// The board as Python sees it: to look at, to set, to sweep.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/board_settings.h"
#include "board/board.h"
#include "board/guard.h"
#include "board/places.h"
#include "board/tracks.h"
#include "policy/kinds.h"

namespace nb = nanobind;

namespace {

using namespace gate;

constexpr const char *CLASSES[] = {"latency", "best-effort"};

std::uint64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1000000000u + static_cast<std::uint64_t>(time.tv_nsec);
}

std::uint32_t policy_named(const std::string &name) {
    int policy = gate_policy_number(name.c_str());
    if (policy >= 0) return static_cast<std::uint32_t>(policy);
    std::string known;
    for (std::uint32_t other = 0; other < GATE_POLICIES; other++)
        known += (other ? ", " : "") + std::string(gate_policy_name(other));
    refuse("policy", "one of " + known);
}

gate_class class_named(const std::string &name) {
    if (name == CLASSES[GATE_LATENCY]) return GATE_LATENCY;
    if (name == CLASSES[GATE_BEST_EFFORT]) return GATE_BEST_EFFORT;
    refuse("class", "latency or best-effort");
}

nb::object as_python(const BoardSetting &setting, BoardSettings &at) {
    double value = value_of(setting, at);
    bool real = std::holds_alternative<double *>(setting.slot(at));
    return real ? nb::cast(value) : nb::cast(static_cast<std::uint64_t>(value));
}

nb::dict settings_dict(BoardSettings at) {
    nb::dict values;
    for (const BoardSetting &setting : SETTINGS) values[setting.name] = as_python(setting, at);
    return values;
}

template <typename Value>
nb::dict by_kind(const Value (&values)[GATE_KINDS]) {
    nb::dict by_name;
    for (int kind = 0; kind < GATE_KINDS; kind++) {
        Value value;
        __atomic_load(&values[kind], &value, __ATOMIC_RELAXED);
        by_name[kind_name(static_cast<std::uint32_t>(kind))] = value;
    }
    return by_name;
}

nb::dict counts_dict(const gate_counts &counts) {
    nb::dict counted, waits;
    for (std::uint32_t reason = 1; reason < GATE_VERDICTS; reason++)
        waits[gate_verdict_name(reason)] = counts.waits[reason];
    counted["kernels"] = counts.kernels;
    counted["graphs"] = counts.graphs;
    counted["copies"] = counts.copies;
    counted["captured"] = counts.captured;
    counted["held"] = counts.held;
    counted["held_ns"] = counts.held_ns;
    counted["beside"] = counts.beside;
    counted["unknown"] = counts.unknown;
    counted["requests"] = counts.requests;
    counted["partitioned"] = counts.partitioned;
    counted["fences"] = counts.fences;
    counted["busy_ns"] = counts.busy_ns;
    counted["ran"] = counts.ran;
    counted["waits"] = waits;
    return counted;
}

nb::object reason_of(const gate_client &client) {
    std::uint32_t waiting = __atomic_load_n(&client.waiting, __ATOMIC_ACQUIRE);
    const char *name = waiting ? gate_verdict_name(waiting - 1) : nullptr;
    return name ? nb::cast(name) : nb::none();
}

nb::dict work_dict(const gate_work &work) {
    nb::dict row;
    row["duration"] = work.duration;
    row["sms"] = work.sms;
    row["kind"] = kind_name(work.kind);
    return row;
}

void add_in_flight(nb::dict &row, const gate_client &client) {
    std::uint64_t count = 0, expected = 0;
    for (const gate_track &track : client.tracks) {
        count += gate_track_in_flight(&track);
        expected += gate_track_in_flight_ns(&track);
    }
    row["running"] = count > 0;
    row["in_flight"] = count;
    row["in_flight_ns"] = expected;
}

// Any bytes may stand there.
template <std::size_t size>
nb::object text_of(const char (&name)[size]) {
    return nb::steal(PyUnicode_DecodeUTF8(name, static_cast<Py_ssize_t>(strnlen(name, size)), "replace"));
}

nb::dict client_dict(int place, const gate_client &client) {
    nb::dict row;
    row["place"] = place;
    row["pid"] = client.pid;
    row["name"] = text_of(client.name);
    row["kind"] = CLASSES[client.kind == GATE_LATENCY ? GATE_LATENCY : GATE_BEST_EFFORT];
    row["touched"] = client.touched;
    row["waiting"] = reason_of(client);
    row["in_request"] = client.in_request != 0;
    row["phases"] = client.phases;
    row["work"] = work_dict(client.work);
    row["alone"] = client.alone;
    row["last"] = client.last;
    row["pace"] = client.pace;
    row["beside"] = by_kind(client.beside);
    row["harm"] = by_kind(client.harm);
    row["counts"] = counts_dict(client.counts);
    add_in_flight(row, client);
    return row;
}

class Board {
  public:
    Board(const std::string &path, const std::string &policy, std::uint32_t sms) : path_(path) {
        std::uint32_t number = policy_named(policy);
        if (sms < 1 || sms > MOST_SMS) refuse("sms", "1 to " + gate::number(MOST_SMS));
        const char *why = "";
        board_ = gate_board_open(path.c_str(), number, sms, &why);
        if (!board_) refuse(path, std::string("a board that can be used, but ") + why);
    }
    Board(const Board &) = delete;
    Board &operator=(const Board &) = delete;
    ~Board() { gate_board_close(board_); }

    nb::dict snapshot() const {
        nb::dict snapshot = unchecked();
        check();
        return snapshot;
    }

    nb::dict unchecked() const {
        nb::dict snapshot;
        BoardSettings settings = settings_of(board_);
        snapshot["path"] = path_;
        snapshot["now"] = now();
        snapshot["sms"] = settings.knobs.sms;
        const char *name = gate_policy_name(settings.knobs.policy);
        snapshot["policy"] = name ? name : "unknown";
        snapshot["settings"] = settings_dict(settings);
        snapshot["most_sms"] = board_->most_sms;
        snapshot["clients"] = clients();
        return snapshot;
    }

    void set_policy(const std::optional<std::string> &policy, const nb::kwargs &values) {
        BoardSettings changed = settings_of(board_);
        if (policy) choose(changed, policy_named(*policy));
        for (auto [name, value] : values)
            set_value(setting_named(nb::cast<std::string>(name)), changed, real(name, value));
        write_settings(board_, changed);
        check();
    }

    void set(const nb::kwargs &values) { set_policy(std::nullopt, values); }
    int sweep() {
        int freed = gate_board_sweep(board_);
        check();
        return freed;
    }
    void leave(int place) {
        if (place < 0 || place >= GATE_CLIENTS) refuse("place", "0 to " + gate::number(GATE_CLIENTS - 1));
        gate_board_leave(board_, place);
    }

    int join(const std::string &kind, const std::string &name) {
        int place = gate_board_join(board_, class_named(kind), name.c_str());
        check();
        if (place < 0) refuse(path_, "a free place, but all are taken");
        return place;
    }

  private:
    // What was read since the file was cut short is nothing.
    void check() const {
        if (!gate_guard_lost(board_)) return;
        refuse(path_, "a board that can be used, but it was cut short while it was open");
    }

    static double real(nb::handle name, nb::handle value) {
        double number = 0;
        bool fits = !nb::isinstance<nb::bool_>(value) && nb::try_cast<double>(value, number);
        if (!fits) refuse(nb::cast<std::string>(name), "a number");
        return number;
    }

    nb::list clients() const {
        nb::list rows;
        for (int place = 0; place < GATE_CLIENTS; place++) {
            const gate_client &client = board_->clients[place];
            if (!lives(client)) continue;
            nb::dict row = client_dict(place, client);
            if (lives(client)) rows.append(row);  // else it left while it was looked at
        }
        return rows;
    }

    static bool lives(const gate_client &client) { return gate_client_lives(&client); }

    std::string path_;
    gate_board *board_;
};

std::vector<std::string> policy_names() {
    std::vector<std::string> names;
    for (std::uint32_t policy = 0; policy < GATE_POLICIES; policy++) names.emplace_back(gate_policy_name(policy));
    return names;
}

nb::list setting_table() {
    nb::list rows;
    for (const BoardSetting &setting : SETTINGS) {
        nb::dict row;
        row["name"] = setting.name;
        row["unit"] = setting.unit;
        row["least"] = setting.least;
        row["most"] = setting.most;
        row["about"] = setting.about;
        rows.append(row);
    }
    return rows;
}

}  // namespace

void bind_board(nb::module_ &m) {
    nb::class_<Board>(m, "Board",
                      "The shared memory where clients of the gate meet. Where there is none yet it is made, with this "
                      "policy.")
        .def(nb::init<const std::string &, const std::string &, std::uint32_t>(), nb::arg("path"),
             nb::arg("policy") = "astrarium", nb::arg("sms") = 132)
        .def("snapshot", &Board::snapshot, nb::sig("def snapshot(self) -> dict[str, typing.Any]"),
             "Return all that is on the board now, as `BoardView`.")
        .def("set_policy", &Board::set_policy, nb::arg("name").none(), nb::arg("settings"),
             nb::sig("def set_policy(self, name: str | None, /, **settings: float) -> None"),
             "Choose a policy, with its defaults, and change settings; all of it or, with ValueError, nothing.")
        .def("set", &Board::set, nb::arg("settings"), nb::sig("def set(self, **settings: float) -> None"),
             "Change settings and keep the policy.")
        .def("sweep", &Board::sweep, "Free the places of clients whose processes are gone, and return how many.")
        .def("join", &Board::join, nb::arg("kind"), nb::arg("name"),
             "Take a place for a client, and return its number.")
        .def("leave", &Board::leave, nb::arg("place"), "Free the place of a client.");
    m.def(
        "kind_of", [](const std::string &name) { return kind_name(kind_by_name(name.c_str())); }, nb::arg("name"),
        nb::sig("def kind_of(name: str) -> str"), "Return the kind of a kernel, by its name.");
    m.def("policy_names", &policy_names, "Return the names of all policies, by number.");
    m.def("setting_table", &setting_table, nb::sig("def setting_table() -> list[dict[str, typing.Any]]"),
          "Return what can be set on a board: names, units, ranges and what they mean.");
}
