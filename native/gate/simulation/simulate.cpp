#include "simulation/simulate.h"

#include <algorithm>
#include <stdexcept>

#include "simulation/client.h"

namespace gate::sim {
namespace {

class Simulation {
  public:
    Simulation(const Setting &setting, const std::vector<ClientSpec> &specs)
        : setting_(setting),
          knobs_(setting.knobs),
          gpu_(setting.gpu, specs.size()),
          clients_(specs.begin(), specs.end()) {
        for (const Client &client : clients_)
            if (!client.latency()) search_.high = std::max(search_.high, client.graph.sms + 1);  // that fits all of it
        if (setting.search_limit > 0) knobs_.sm_threshold = search_.high;
    }

    Result run() {
        for (Client &client : clients_) turn_to_next(client);
        while (true) {
            const Time next = next_event();
            if (next == kNever || next > setting_.until) break;
            now_ = next;
            gpu_.advance(now_);
            end_kernels();
            for (Client &client : clients_) see_news(client);
            act();
            start_kernels();
        }
        if (setting_.until != kNever) {
            now_ = setting_.until;
            gpu_.advance(now_);
        }
        Result result{{}, gpu_.usage(), now_, knobs_};
        for (Client &client : clients_) result.clients.push_back(std::move(client.result));
        return result;
    }

  private:
    Time next_event() const {
        Time next = retry_at_;
        for (std::size_t i = 0; i < clients_.size(); ++i) {
            const Client &client = clients_[i];
            if (client.cpu == Cpu::kLaunching || client.cpu == Cpu::kIdle) next = std::min(next, client.at);
            if (!gpu_.free(i)) next = std::min(next, gpu_.ends(i));
            if (gpu_.free(i) && !client.stream.empty() && client.ready > now_) next = std::min(next, client.ready);
            if (!client.news.empty()) next = std::min(next, client.news.front().at);
        }
        return next;
    }

    // On the GPU.
    void end_kernels() {
        for (std::size_t i = 0; i < clients_.size(); ++i) {
            if (gpu_.free(i) || gpu_.ends(i) > now_) continue;
            Client &client = clients_[i];
            gpu_.end(i);
            ++client.result.kernels;
            client.ready = now_ + client.spec->between;
            client.on_gpu -= client.stream.front().ends_request;
            client.stream.front().at = now_ + setting_.seen;
            client.news.push_back(client.stream.front());
            client.stream.pop_front();
            moved_ = true;
        }
    }

    void start_kernels() {
        const bool closed = std::any_of(clients_.begin(), clients_.end(),
                                        [](const Client &client) { return client.latency() && client.on_gpu > 0; });
        for (std::size_t i = 0; i < clients_.size(); ++i) {
            Client &client = clients_[i];
            if (!gpu_.free(i) || client.stream.empty() || (closed && client.stream.front().fenced)) continue;
            pass_fence(client);
            if (client.ready > now_) continue;
            gpu_.start(i, *client.stream.front().kernel, client.latency(), now_);
            moved_ = true;
        }
        if (moved_) gpu_.settle();
        moved_ = false;
    }

    void pass_fence(Client &client) const {
        if (!client.stream.front().fenced) return;
        client.stream.front().fenced = false;
        client.ready = std::max(client.ready, now_) + setting_.fence;
    }

    // What is heard of it.
    void see_news(Client &client) {
        while (!client.news.empty() && client.news.front().at <= now_) {
            const Queued done = client.news.front();
            client.news.pop_front();
            client.phases_ended += done.ends_phase;
            if (done.ends_command) {
                --client.in_flight;
                if (!client.latency()) ended(done.command);
            }
            if (done.ends_request) end_request(client);
            if (client.cpu == Cpu::kWaiting) go_on(client);
            something_changed();
        }
    }

    void ended(const gate_work &best_effort) {
        outstanding_ -= best_effort.duration;
        --outstanding_count_;
    }

    void end_request(Client &client) {
        Request request = client.open.front();
        client.open.pop_front();
        client.result.arrival.push_back(request.arrival);
        client.result.begin.push_back(request.begin);
        client.result.end.push_back(now_);
        if (!client.latency()) return;
        request.beside.duration = static_cast<std::uint64_t>(now_ - request.begin);
        if (setting_.learn) learn(request.beside);
        if (client.running()) note_before(client.open.front());
    }

    void learn(const gate_request &request) {
        knobs_.latency = gate_learn_alone(knobs_.latency, &request);
        if (knobs_.policy == GATE_ASTRARIUM) gate_learn_harm(&knobs_, &request);
        if (setting_.search_limit > 0)
            knobs_.sm_threshold = gate_search_step(&search_, knobs_.sm_threshold, setting_.knobs.latency,
                                                   setting_.search_limit, request.duration);
    }

    // On the clients' CPUs.
    void turn_to_next(Client &client) {
        const ClientSpec &spec = *client.spec;
        const bool over = spec.arrivals ? client.begun == std::ssize(*spec.arrivals)
                                        : spec.requests > 0 && client.begun == spec.requests;
        client.cpu = Cpu::kIdle;
        client.at = kNever;
        if (over) return;
        const Time arrival = spec.arrivals ? (*spec.arrivals)[static_cast<std::size_t>(client.begun)] : now_;
        client.at = arrival;
        if (arrival > now_) return;
        ++client.begun;
        client.open.push_back({arrival, kNever, {}});
        client.position = 0;
        prepare_launch(client);
    }

    void prepare_launch(Client &client) {
        Time from = now_;
        if (setting_.one_interpreter) from = std::max(from, interpreter_free_);
        interpreter_free_ = from + client.spec->gap;
        client.cpu = Cpu::kLaunching;
        client.at = interpreter_free_;
    }

    // After a launch, or when news came for a client that waits.
    void go_on(Client &client) {
        client.cpu = Cpu::kWaiting;
        if (client.in_flight >= client.spec->ahead) return;
        if (client.position < client.commands()) return prepare_launch(client);
        if (!client.spec->synchronize || client.open.empty()) turn_to_next(client);
    }

    void act() {
        if (retry_at_ <= now_) ask_those_held();
        for (Client &client : clients_) {
            if (client.cpu == Cpu::kIdle && client.at <= now_) turn_to_next(client);
            while (client.cpu == Cpu::kLaunching && client.at <= now_) ask(client);
        }
    }

    void ask_those_held() {
        retry_at_ = kNever;
        for (Client &client : clients_)
            if (client.latency() && client.cpu == Cpu::kHeld) ask(client);
        for (std::size_t i = 0, first = turn_; i < clients_.size(); ++i) {
            Client &client = clients_[(first + i) % clients_.size()];
            if (!client.latency() && client.cpu == Cpu::kHeld) ask(client);
        }
    }

    // Of those that only wait for others to end, the first from the turn on.
    bool has_turn(const Client &client) const {
        for (std::size_t i = 0; i < clients_.size(); ++i) {
            const Client &other = clients_[(turn_ + i) % clients_.size()];
            if (&other == &client) return true;
            if (!other.latency() && other.could_go) return false;
        }
        return true;
    }

    void something_changed() { retry_at_ = std::min(retry_at_, now_ + setting_.relaunch); }

    void ask(Client &client) {
        const gate_work work = client.spec->graph ? client.graph : client.spec->kernels[client.position].work;
        const gate_scene scene = scene_for(client);
        const gate_verdict verdict = gate_decide(&knobs_, &scene, &work);
        const bool could_go = verdict == GATE_GO || verdict == GATE_WAIT_DRAIN;
        if (verdict != GATE_GO) return hold(client, verdict, could_go);
        if (!client.latency() && !has_turn(client)) return hold(client, GATE_WAIT_TURN, could_go);
        if (client.cpu == Cpu::kHeld) {
            client.result.held_ns += now_ - client.held_since;
            client.could_go = false;
            if (!client.latency()) turn_ = static_cast<std::size_t>(&client - clients_.data()) + 1;
        }
        launch(client, work);
        go_on(client);
    }

    void hold(Client &client, gate_verdict verdict, bool could_go) {
        client.could_go = could_go;
        if (client.cpu == Cpu::kHeld) return;
        client.cpu = Cpu::kHeld;
        client.held_since = now_;
        ++client.result.held[verdict];
        if (client.latency()) something_changed();  // best effort must know that it waits
    }

    void launch(Client &client, const gate_work &work) {
        if (client.position == 0) begin_request(client);
        if (client.latency()) {
            latest_ = work;
            something_changed();
        } else {
            book_best_effort(work);
        }
        enqueue(client, work, fence_before(client, work));
        ++client.position;
        ++client.in_flight;
        ++client.result.launches;
    }

    void book_best_effort(const gate_work &work) {
        if (!fences()) charge(work);
        outstanding_ += work.duration;
        ++outstanding_count_;
    }

    // A kernel, or all of a graph.
    void enqueue(Client &client, const gate_work &work, bool fenced) {
        const auto &kernels = client.spec->kernels;
        const std::size_t first = client.position, last = client.spec->graph ? kernels.size() : first + 1;
        for (std::size_t i = first; i < last; ++i) {
            const bool ends_phase = phase_ends(kernels, i), ends_request = i + 1 == kernels.size();
            client.stream.push_back(
                {&kernels[i], i + 1 == last, ends_phase, ends_request, fenced && i == first, 0, work});
            client.phases += ends_phase;
        }
    }

    void charge(const gate_work &work) {
        for (Client &other : clients_)
            if (other.latency() && other.running()) other.open.front().beside.beside[work.kind] += work.duration;
    }

    // Beside a client that wants throughput there are none: it would never open them.
    bool fences() const {
        return gate_policy_fences(knobs_.policy) && !setting_.one_interpreter && setting_.search_limit <= 0;
    }

    bool fence_before(Client &client, const gate_work &work) {
        if (client.latency() || !fences()) return false;
        const bool due = gate_fence_due(gate_window(&knobs_), client.unfenced, &work);
        client.unfenced = work.duration + (due ? 0 : client.unfenced);
        return due;
    }

    void begin_request(Client &client) {
        ++client.on_gpu;
        client.open.back().begin = now_;
        if (client.latency() && client.open.size() == 1) note_before(client.open.front());
    }

    void note_before(Request &request) { request.beside.beside[GATE_BEFORE] = outstanding_; }

    gate_scene scene_for(const Client &client) const {
        gate_scene scene{};
        scene.asks = client.spec->role;
        scene.latency_work = latest_;
        scene.outstanding = outstanding_;
        scene.outstanding_count = outstanding_count_;
        scene.in_request = client.position > 0;
        scene.own_phases = client.phases;
        scene.other_phases = ~std::uint64_t{0};
        const bool blind = !client.latency() && fences();
        if (!blind) see_latency(scene);
        for (const Client &other : clients_)
            if (other.spec->role != client.spec->role && !blind) see_other(scene, other);
        return scene;
    }

    // What is launched beside the request that began first counts.
    void see_latency(gate_scene &scene) const {
        const Request *oldest = nullptr;
        for (const Client &client : clients_) {
            if (!client.latency()) continue;
            scene.latency_running |= client.running();
            scene.latency_waits |= client.waits();
            if (client.running() && (oldest == nullptr || client.open.front().begin < oldest->begin))
                oldest = &client.open.front();
        }
        if (oldest != nullptr) std::copy_n(oldest->beside.beside, GATE_KINDS, scene.beside);
    }

    static void see_other(gate_scene &scene, const Client &other) {
        scene.others = 1;
        scene.other_in_request |= other.running();
        scene.other_phases = std::min(scene.other_phases, other.phases_ended);
    }

    const Setting &setting_;
    gate_knobs knobs_;
    gate_search search_{};
    GpuModel gpu_;
    std::vector<Client> clients_;
    Time now_ = 0, retry_at_ = kNever, interpreter_free_ = 0;
    std::uint64_t outstanding_ = 0;
    std::uint32_t outstanding_count_ = 0;
    gate_work latest_{};  // of latency clients
    std::size_t turn_ = 0;  // of the best-effort client that is asked first
    bool moved_ = false;
};

void require(bool fits, const char *message) {
    if (!fits) throw std::invalid_argument(message);
}

void check_setting(const Setting &setting) {
    require(setting.gpu.sms > 0, "sms must be at least 1");
    require(setting.gpu.shared_capacity > 0 && setting.gpu.shared_capacity <= 1, "shared_capacity must be in (0, 1]");
    require(setting.knobs.policy < GATE_POLICIES, "policy must be one of the gate's");
    require(setting.seen >= 0 && setting.relaunch >= 0 && setting.fence >= 0,
            "seen, relaunch and fence must not be negative");
}

void check_kernels(const std::vector<Kernel> &kernels) {
    const auto works = [](const Kernel &kernel) { return kernel.work.duration > 0; };
    require(std::any_of(kernels.begin(), kernels.end(), works), "kernels must take time");
    for (const Kernel &kernel : kernels) {
        require(kernel.work.kind < GATE_BEFORE, "kind must be that of a kernel");
        for (const double use : kernel.use) require(use >= 0 && use <= 1, "use must be from 0 to 1");
    }
}

void check_client(const ClientSpec &client, Time until) {
    require(!client.kernels.empty(), "kernels must not be empty");
    require(client.gap >= 0 && client.between >= 0, "gap and between must not be negative");
    require(client.ahead >= 1, "ahead must be at least 1");
    check_kernels(client.kernels);
    if (client.arrivals)
        require(std::is_sorted(client.arrivals->begin(), client.arrivals->end()), "arrivals must be in order");
    const bool endless = !client.arrivals && client.requests == 0;
    require(!endless || until != kNever, "a client without end needs a time to stop at");
}

}  // namespace

Result simulate(const Setting &setting, const std::vector<ClientSpec> &clients) {
    check_setting(setting);
    for (const ClientSpec &client : clients) check_client(client, setting.until);
    return Simulation(setting, clients).run();
}

}  // namespace gate::sim
